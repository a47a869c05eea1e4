/*
 * The lab's libnvidia-ml.so.1: NVIDIA's own programs run on it, with GPUs that are a table.
 *
 * It is compiled against NVIDIA's real nvml.h, so that a wrong signature is an error of the compiler.  What it says
 * comes from the files of a folder, /lab in a node or $GPUNODE_LAB_ROOT (docs/lab.md has their contract):
 *
 *   standin-gpus     the GPUs: slot, id, UUID, MiB, capability, MIG, ECC, flavours, name
 *   standin-mig      profiles of MIG; the state is in mig/SLOT, the same files that mig.sh keeps
 *   standin-health   what a GPU says in place of a healthy one's answer: slot, field, value
 *   standin-settings the same, of what was set (persistence, limits, modes): every process after that reads it
 *   sys/module/nvidia/version     the version of the driver; without it no driver is loaded
 *
 * In a node a GPU is there where /dev/nvidiaN is.  A container has no /lab: the table's rows stand at the end of this
 * library, each behind "#gpu\t".  Functions of nvml.h that are not here say «Not Supported» (gpunode/lab/nvml.py makes
 * them); with $GPUNODE_LAB_TRACE their names, and those of unknown internal ones, go into that file.
 */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define IDLE_MHZ 345
#define MOST_GPUS 64
#define MOST_PROFILES 512
#define MOST_INSTANCES 16 /* numbers 1 to 15 of a GPU */
#define PATH 512
#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { SLOT, PCI_ID, UUID, MIB, CAPABILITY, MIG, ECC, FLAVOURS, NAME, GPU_COLUMNS };
enum { P_SLOT, P_KEPT, P_NAME, P_ID, P_COMPUTE, P_MEMORY, P_STARTS, P_OFA, P_MEDIA, P_MOST, P_GIB, P_TOTALS, PROFILE_COLUMNS };

struct model {
    const char *ids; /* PCI ids, or the beginning of one */
    unsigned links, link_mbps, link_version;
    int fabric, limits; /* it joins a fabric; its thresholds are counted from a limit */
    unsigned watts, least_watts, sm_mhz, memory_mhz, pcie, rows, sm_per_slice;
    const char *vbios;
};

struct gpu {
    char *column[GPU_COLUMNS];
    unsigned index, minor;
    const struct model *model;
};

struct profile {
    char *column[PROFILE_COLUMNS];
};

/* a GPU instance with the compute instance that fills it, which is one MIG device: one pointer is the handle of all three */
struct instance {
    struct gpu *gpu;
    unsigned id, profile, start, size;
    int there, computes;
    char name[32];
};

static struct gpu gpus[MOST_GPUS];
static unsigned gpu_count;
static struct profile profiles[MOST_PROFILES];
static unsigned profile_count;
static struct instance instances[MOST_GPUS][MOST_INSTANCES];
static char driver[32];
static int loaded;

/* What real boards of these models say (figures of machines with drivers 570 to 595). */
static const struct model MODELS[] = {
    {"10de:20b 10de:20f", 12, 25000, 3, 0, 0, 400, 100, 1410, 1593, 4, 640, 14, "92.00.45.00.03"}, /* A100 */
    {"10de:20b5 10de:20f1 10de:20b7 10de:20f5", 0, 0, 0, 0, 0, 300, 100, 1410, 1512, 4, 640, 14, "92.00.68.00.01"}, /* PCIe; A30 */
    {"10de:2330 10de:2335 10de:2336 10de:2339", 18, 26562, 4, 1, 1, 700, 200, 1980, 2619, 5, 2560, 16, "96.00.99.00.01"}, /* H100, H200 */
    {"10de:29 10de:31", 18, 53125, 5, 1, 1, 1000, 200, 1965, 3996, 5, 6144, 18, "97.00.FA.00.09"}, /* B200, GB200 */
    {"10de:2bb", 0, 0, 0, 0, 1, 300, 250, 3090, 14001, 5, 512, 46, "98.02.6A.00.03"}, /* RTX PRO */
    {"10de:26 10de:27", 0, 0, 0, 0, 1, 350, 100, 2520, 9001, 4, 192, 0, "95.02.66.00.15"}, /* Ada */
    {"10de:1db", 0, 0, 0, 0, 0, 250, 100, 1380, 877, 3, 0, 0, "88.00.80.00.01"}, /* V100 */
    {"10de:", 0, 0, 0, 0, 0, 150, 60, 1710, 6251, 4, 192, 0, "94.02.75.00.01"},
};

/* ---------------------------------------------------------------- files */

static const char *own_root(void)
{
    const char *given = getenv("GPUNODE_LAB_ROOT");
    return given && *given ? given : NULL;
}

static const char *root(void)
{
    const char *given = own_root();
    return given ? given : "/lab";
}

/* A path in one of a few buffers, the oldest of which is used again. */
__attribute__((format(printf, 1, 2))) static char *path(const char *format, ...)
{
    static __thread char buffers[8][PATH];
    static __thread unsigned next;
    char *buffer = buffers[next++ % COUNT(buffers)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, PATH, format, arguments);
    va_end(arguments);
    return buffer;
}

/* All of a file, with a NUL after it; the caller frees it.  NULL when it cannot be read. */
static char *contents(const char *name, size_t *length)
{
    FILE *file = fopen(name, "rb");
    if (!file)
        return NULL;
    size_t size = 0, got;
    char *text = NULL, *more;
    do {
        more = realloc(text, size + 65537);
        if (!more)
            break;
        text = more;
        got = fread(text + size, 1, 65536, file);
        size += got;
    } while (got == 65536);
    fclose(file);
    if (text)
        text[size] = 0;
    if (length)
        *length = size;
    return text;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    if (!file)
        return;
    fputs(text, file);
    fclose(file);
}

static void make_folders(char *name)
{
    for (char *slash = name + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(name, 0755);
        *slash = '/';
    }
    mkdir(name, 0755);
}

/* Split a line at its tabs; how many columns there were, `most` at most. */
static int split(char *line, char **columns, int most)
{
    int count = 0;
    while (count < most && line)
        columns[count++] = strsep(&line, "\t");
    return count;
}

static void trace(const char *what)
{
    const char *name = getenv("GPUNODE_LAB_TRACE");
    FILE *file = name ? fopen(name, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s\n", what);
    fclose(file);
}

/* ---------------------------------------------------------------- the tables */

static char *own_path(void)
{
    static char name[PATH];
    Dl_info self;
    if (!dladdr((void *)own_path, &self) || !realpath(self.dli_fname, name))
        name[0] = 0;
    return name;
}

/* The version in this library's own name, libnvidia-ml.so.580.95.05; "" where it has none. */
static const char *own_version(void)
{
    const char *mark = strstr(own_path(), ".so.");
    return mark && strchr(mark + 4, '.') ? mark + 4 : "";
}

static void find_version(void)
{
    const char *given = getenv("GPUNODE_LAB_DRIVER");
    char *text = given ? strdup(given) : contents(path("%s/sys/module/nvidia/version", root()), NULL);
    if (!text && !own_root())
        text = contents("/sys/module/nvidia/version", NULL);
    /* a container has no such file, but it has the device and the library's name */
    if (!text && !own_root() && access(root(), F_OK))
        text = strdup(*own_version() ? own_version() : "550.163.01");
    snprintf(driver, sizeof driver, "%s", text ? text : "");
    driver[strcspn(driver, "\n")] = 0;
    free(text);
}

static unsigned branch(void) { return atoi(driver); }

static const struct model *model_of(const char *id)
{
    const struct model *best = &MODELS[COUNT(MODELS) - 1];
    size_t length = 0;
    for (unsigned i = 0; i < COUNT(MODELS); i++) {
        char *ids = strdup(MODELS[i].ids), *rest = ids, *word;
        while ((word = strsep(&rest, " ")))
            if (!strncmp(id, word, strlen(word)) && strlen(word) > length) {
                length = strlen(word);
                best = &MODELS[i];
            }
        free(ids);
    }
    return best;
}

static int is_there(const struct gpu *gpu)
{
    const char *given = own_root();
    if (!access(path("%s/sys/bus/pci/devices", root()), F_OK) && access(path("%s/sys/bus/pci/devices/%s", root(), gpu->column[SLOT]), F_OK))
        return 0; /* it fell off the bus */
    if (!given)
        return !access(path("/dev/nvidia%u", gpu->minor), F_OK);
    return access(path("%s/dev", given), F_OK) || !access(path("%s/dev/nvidia%u", given, gpu->minor), F_OK);
}

/* The number of its device file: of those that the driver has bound, or of the table's rows. */
static unsigned minor_of(const struct gpu *gpu, unsigned row)
{
    char *text = contents(path("%s/proc/driver/nvidia/gpus/%s/information", root(), gpu->column[SLOT]), NULL);
    char *line = text ? strstr(text, "Device Minor:") : NULL;
    unsigned minor = row;
    if (line)
        sscanf(line, "Device Minor: %u", &minor);
    else if (!access(path("%s/proc/driver/nvidia/gpus", root()), F_OK))
        minor = 9999; /* no driver has bound it */
    free(text);
    return minor;
}

static void load_gpus(void)
{
    size_t length = 0;
    const char *mark = "";
    char *text = contents(path("%s/standin-gpus", root()), NULL), *line;
    if (!text && (text = contents(own_path(), &length))) { /* in a container: the end of this very file */
        static const char start[] = "\n#gpu\t";
        char *found = text, *rows = NULL;
        while ((found = memmem(found + 1, text + length - found - 1, start, sizeof start - 1)))
            if (isxdigit(found[sizeof start - 1])) {
                rows = found + 1;
                break;
            }
        mark = "#gpu\t";
        text = rows;
    }
    gpu_count = 0;
    for (unsigned row = 0; text && gpu_count < MOST_GPUS && (line = strsep(&text, "\n"));) {
        struct gpu *gpu = &gpus[gpu_count];
        if (strncmp(line, mark, strlen(mark)) || split(line + strlen(mark), gpu->column, GPU_COLUMNS) < GPU_COLUMNS)
            continue;
        gpu->minor = minor_of(gpu, row++);
        gpu->index = gpu_count;
        gpu->model = model_of(gpu->column[PCI_ID]);
        if (is_there(gpu))
            gpu_count++;
    }
    profile_count = 0;
    for (text = contents(path("%s/standin-mig", root()), NULL); text && profile_count < MOST_PROFILES && (line = strsep(&text, "\n"));)
        if (split(line, profiles[profile_count].column, PROFILE_COLUMNS) == PROFILE_COLUMNS)
            profile_count++;
} /* both texts stay: their columns are in use until the process ends */

/* ---------------------------------------------------------------- health */

static const struct {
    nvmlReturn_t code;
    const char *text;
} WORDS[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "The operating system has blocked the request"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "The requested vgpu operation is not available on the target device, because ECC is enabled"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "Requested frequency is not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "The provided version is invalid/unsupported"},
    {NVML_ERROR_DEPRECATED, "Requested functionality has been deprecated"},
    {NVML_ERROR_NOT_READY, "System is not in ready state"},
    {NVML_ERROR_GPU_NOT_FOUND, "No GPUs were found"},
    {NVML_ERROR_INVALID_STATE, "Resource is not in correct state to perform requested operation"},
    {NVML_ERROR_UNKNOWN, "Unknown Error"},
};

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    for (unsigned i = 0; i < COUNT(WORDS); i++)
        if (WORDS[i].code == result)
            return WORDS[i].text;
    return "Unknown Error";
}

/* The error that a word such as «[GPU requires reset]» stands for; NVML_SUCCESS for any other text. */
static nvmlReturn_t error_of(const char *word)
{
    size_t length = strcspn(*word == '[' ? ++word : word, "]");
    if ((length == 3 && !strncmp(word, "N/A", 3)))
        return NVML_ERROR_NOT_SUPPORTED;
    if (length == 4 && !strncmp(word, "ERR!", 4))
        return NVML_ERROR_UNKNOWN;
    for (unsigned i = 1; i < COUNT(WORDS); i++)
        if (strlen(WORDS[i].text) == length && !strncmp(word, WORDS[i].text, length))
            return WORDS[i].code;
    return NVML_SUCCESS;
}

static int row_of(const char *file, const struct gpu *gpu, const char *field, char *value, size_t size)
{
    char *text = contents(path("%s/%s", root(), file), NULL), *rest = text, *line, *column[3];
    int found = 0;
    while (!found && rest && (line = strsep(&rest, "\n")))
        if (split(line, column, 3) == 3 && !strcasecmp(column[0], gpu->column[SLOT]) && !strcmp(column[1], field)) {
            snprintf(value, size, "%s", column[2]);
            found = 1;
        }
    free(text);
    return found;
}

/* What standin-health says of a field of that GPU, or what was set, in `value`; 0 when there is neither. */
static int health(const struct gpu *gpu, const char *field, char *value, size_t size)
{
    return row_of("standin-health", gpu, field, value, size) || row_of("standin-settings", gpu, field, value, size);
}

/* Remove the rows of these fields that `file` has of that GPU. */
static nvmlReturn_t forget(const char *file, const struct gpu *gpu, const char *const *fields, unsigned count)
{
    char *text = contents(path("%s/%s", root(), file), NULL), *rest = text, *line, *column[3];
    FILE *kept = text ? fopen(path("%s/%s", root(), file), "w") : NULL;
    if (text && !kept) {
        free(text);
        return NVML_ERROR_NO_PERMISSION;
    }
    while (kept && rest && (line = strsep(&rest, "\n"))) {
        char *copy = strdup(line);
        int gone = 0, own = split(copy, column, 3) == 3 && !strcasecmp(column[0], gpu->column[SLOT]);
        for (unsigned i = 0; own && i < count; i++)
            gone |= !strcmp(column[1], fields[i]);
        if (!gone && *line)
            fprintf(kept, "%s\n", line);
        free(copy);
    }
    if (kept)
        fclose(kept);
    free(text);
    return NVML_SUCCESS;
}

/* Set a field of that GPU for this process and all that come after it; NULL: as it is by itself. */
static nvmlReturn_t set(const struct gpu *gpu, const char *field, const char *value)
{
    nvmlReturn_t result = forget("standin-settings", gpu, &field, 1);
    FILE *file = !result && value ? fopen(path("%s/standin-settings", root()), "a") : NULL;
    if (!result && value && !file)
        return NVML_ERROR_NO_PERMISSION;
    if (file) {
        fprintf(file, "%s\t%s\t%s\n", gpu->column[SLOT], field, value);
        fclose(file);
    }
    return result;
}

static int says_yes(const char *value)
{
    return *value && !strchr("0N", toupper(*value)) && strncmp(value, "Dis", 3) && strcmp(value, "down");
}

static int is_ill(const struct gpu *gpu, const char *field)
{
    char value[64];
    return health(gpu, field, value, sizeof value) && says_yes(value);
}

/* The answer of every question to a GPU that the driver cannot speak for. */
static nvmlReturn_t fault(const struct gpu *gpu)
{
    char value[64];
    if (is_ill(gpu, "lost"))
        return NVML_ERROR_GPU_IS_LOST;
    if (is_ill(gpu, "reset"))
        return NVML_ERROR_RESET_REQUIRED;
    if (health(gpu, "error", value, sizeof value))
        return isdigit(*value) ? (nvmlReturn_t)atoi(value) : error_of(value);
    return NVML_SUCCESS;
}

#define NONE (~0ULL) /* a healthy GPU of this model does not have it */

/* A number: health's, or that of a healthy GPU.  Yes, Enabled, up … count as 1, No and the like as 0. */
static nvmlReturn_t number(const struct gpu *gpu, const char *field, unsigned long long healthy, unsigned long long *out)
{
    char value[64];
    if (health(gpu, field, value, sizeof value)) {
        nvmlReturn_t error = error_of(value);
        if (error)
            return error;
        *out = isdigit(*value) ? strtoull(value, NULL, 0) : (unsigned long long)says_yes(value);
        return NVML_SUCCESS;
    }
    *out = healthy;
    return healthy == NONE ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* ---------------------------------------------------------------- handles */

static struct instance *as_instance(const void *handle)
{
    const struct instance *first = instances[0];
    if ((const char *)handle < (const char *)first || (const char *)handle >= (const char *)(first + MOST_GPUS * MOST_INSTANCES))
        return NULL;
    struct instance *found = (struct instance *)first + ((const char *)handle - (const char *)first) / sizeof *first;
    return (const void *)found == handle && found->gpu ? found : NULL;
}

/* The GPU of a handle, which may be a MIG device's; NULL for anything else. */
static struct gpu *as_gpu(nvmlDevice_t device)
{
    for (unsigned i = 0; i < gpu_count; i++)
        if ((void *)device == &gpus[i])
            return &gpus[i];
    struct instance *mig = as_instance(device);
    return mig ? mig->gpu : NULL;
}

static struct gpu *whole(nvmlDevice_t device) { return as_instance(device) ? NULL : as_gpu(device); }

/* The beginning of a question: `gpu`, or the answer is that the handle or the place for the answer is none. */
#define KNOW(place)                                \
    if (!loaded)                                   \
        return NVML_ERROR_UNINITIALIZED;           \
    struct gpu *gpu = as_gpu(device);              \
    if (!gpu || !(place))                          \
        return NVML_ERROR_INVALID_ARGUMENT

/* The same, for what a lost GPU, or one that requires a reset, does not answer. */
#define ASK(place)                                 \
    KNOW(place);                                   \
    nvmlReturn_t ill = fault(gpu);                 \
    if (ill)                                       \
    return ill

/* A question whose answer is one number. */
#define NUMBER(function, type, field, healthy)                           \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type *out)         \
    {                                                                    \
        unsigned long long value;                                        \
        ASK(out);                                                        \
        nvmlReturn_t result = number(gpu, field, healthy, &value);       \
        if (!result)                                                     \
            *out = (type)value;                                          \
        return result;                                                   \
    }

static nvmlReturn_t say(char *out, unsigned length, const char *text)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- the machine */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    find_version();
    if (!*driver || (!own_root() && access("/dev/nvidiactl", F_OK)))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (*own_version() && strcmp(own_version(), driver))
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    load_gpus();
    loaded = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT nvmlReturn_t nvmlShutdown(void) { return loaded ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return loaded ? say(version, length, driver) : NVML_ERROR_UNINITIALIZED;
}

/* The newest CUDA of a branch: 13.0 of 580, as it stands in nvidia-smi's table. */
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    static const int cuda[][2] = {{615, 13050}, {610, 13030}, {595, 13020}, {590, 13010}, {580, 13000}, {575, 12090},
        {570, 12080}, {565, 12070}, {560, 12060}, {555, 12050}, {550, 12040}, {545, 12030}, {535, 12020}, {530, 12010},
        {525, 12000}, {515, 11070}, {510, 11060}, {470, 11040}, {460, 11020}, {450, 11000}, {418, 10010}, {390, 9010}, {0, 8000}};
    unsigned i = 0;
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    while ((unsigned)cuda[i][0] > branch())
        i++;
    *version = cuda[i][1];
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    int cuda;
    find_version();
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    return say(version, length, path("%d.%s", cuda / 1000, driver));
}

/* The path of its program: nvidia-smi of 615 passes over a process whose name is none. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    if (!name || !length)
        return NVML_ERROR_INVALID_ARGUMENT;
    ssize_t size = readlink(path("/proc/%u/exe", pid), name, length - 1);
    if (size > 0)
        name[size] = 0;
    else
        snprintf(name, length, "/usr/bin/python3");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!loaded)
        return NVML_ERROR_UNINITIALIZED;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = gpu_count;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t give(struct gpu *gpu, nvmlDevice_t *device)
{
    if (is_ill(gpu, "lost")) /* the others are given; nvidia-smi ends at this one */
        return NVML_ERROR_GPU_IS_LOST;
    *device = (nvmlDevice_t)gpu;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (!loaded)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= gpu_count || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give(&gpus[index], device);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

/* The slot in any notation: 00000000:17:00.0, 0000:17:00.0, 17:00.0 */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *name, nvmlDevice_t *device)
{
    size_t length = name ? strlen(name) : 0;
    if (length < 7 || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < gpu_count; i++)
        if (!strcasecmp(gpus[i].column[SLOT] + 5, name + length - 7))
            return give(&gpus[i], device);
    return NVML_ERROR_NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *name, nvmlDevice_t *device) { return nvmlDeviceGetHandleByPciBusId_v2(name, device); }

static unsigned read_instances(struct gpu *gpu, struct instance **found);
static const char *mig_uuid(const struct instance *mig);

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct instance *found[MOST_INSTANCES];
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < gpu_count; i++) {
        if (!strcasecmp(gpus[i].column[UUID], uuid))
            return give(&gpus[i], device);
        for (unsigned k = 0, count = read_instances(&gpus[i], found); k < count; k++)
            if (found[k]->computes && !strcasecmp(mig_uuid(found[k]), uuid)) {
                *device = (nvmlDevice_t)found[k];
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---------------------------------------------------------------- what the driver knows of a GPU without asking it */

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    KNOW(name);
    struct instance *mig = as_instance(device);
    return say(name, length, mig ? path("%s MIG %s", gpu->column[NAME], mig->name) : gpu->column[NAME]);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    KNOW(uuid);
    struct instance *mig = as_instance(device);
    return say(uuid, length, mig ? mig_uuid(mig) : gpu->column[UUID]);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    struct instance *found[MOST_INSTANCES], *mig = as_instance(device);
    KNOW(index);
    *index = mig ? 0 : gpu->index;
    for (unsigned i = 0, all = mig ? read_instances(gpu, found) : 0; i < all && found[i] != mig; i++)
        *index += found[i]->computes != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    KNOW(minor);
    *minor = gpu->minor;
    return NVML_SUCCESS;
}

static void fill_pci(const struct gpu *gpu, nvmlPciInfo_t *pci)
{
    unsigned vendor = 0, product = 0, sub_vendor = 0x10de, sub_product = 0x16c1;
    memset(pci, 0, sizeof *pci);
    sscanf(gpu->column[SLOT], "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    sscanf(gpu->column[PCI_ID], "%x:%x", &vendor, &product);
    const char *names[] = {"subsystem_vendor", "subsystem_device"};
    for (unsigned i = 0; i < 2; i++) {
        char *text = contents(path("%s/sys/bus/pci/devices/%s/%s", root(), gpu->column[SLOT], names[i]), NULL);
        if (text)
            *(i ? &sub_product : &sub_vendor) = strtoul(text, NULL, 16);
        free(text);
    }
    pci->pciDeviceId = product << 16 | vendor;
    pci->pciSubSystemId = sub_product << 16 | sub_vendor;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    KNOW(pci);
    fill_pci(gpu, pci);
    return NVML_SUCCESS;
}
/* the second one's structure ends where the third one's busId begins to be new */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    KNOW(pci);
    nvmlPciInfo_t all;
    fill_pci(gpu, &all);
    memcpy(pci, &all, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

/* the first one's ends before pciSubSystemId; libnvidia-container asks by it */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    KNOW(pci);
    nvmlPciInfo_t all;
    fill_pci(gpu, &all);
    memcpy(pci, &all, offsetof(nvmlPciInfo_t, pciSubSystemId));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    nvmlPciInfo_t all;
    KNOW(pci);
    fill_pci(gpu, &all);
    pci->domain = all.domain, pci->bus = all.bus, pci->device = all.device;
    pci->pciDeviceId = all.pciDeviceId, pci->pciSubSystemId = all.pciSubSystemId;
    pci->baseClass = 3, pci->subClass = 2;
    memcpy(pci->busId, all.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    KNOW(major && minor);
    return sscanf(gpu->column[CAPABILITY], "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

static int capability(const struct gpu *gpu)
{
    int major = 0, minor = 0;
    sscanf(gpu->column[CAPABILITY], "%d.%d", &major, &minor);
    return major * 10 + minor;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *out)
{
    KNOW(out);
    int found = capability(gpu);
    *out = found >= 100 ? NVML_DEVICE_ARCH_BLACKWELL : found >= 90 ? NVML_DEVICE_ARCH_HOPPER : found == 89 ? NVML_DEVICE_ARCH_ADA
        : found >= 80 ? NVML_DEVICE_ARCH_AMPERE : found >= 75 ? NVML_DEVICE_ARCH_TURING : found >= 70 ? NVML_DEVICE_ARCH_VOLTA
        : found >= 60 ? NVML_DEVICE_ARCH_PASCAL : NVML_DEVICE_ARCH_MAXWELL;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *out)
{
    KNOW(out);
    *out = strstr(gpu->column[NAME], "GeForce") ? NVML_BRAND_GEFORCE : strstr(gpu->column[NAME], "RTX") ? NVML_BRAND_NVIDIA_RTX
        : branch() < 470 ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA;
    return NVML_SUCCESS;
}

static nvmlReturn_t text_of(struct gpu *gpu, const char *field, const char *healthy, char *out, unsigned length)
{
    char value[96];
    nvmlReturn_t ill = fault(gpu);
    if (ill)
        return ill;
    if (!health(gpu, field, value, sizeof value))
        return say(out, length, healthy);
    return (ill = error_of(value)) ? ill : say(out, length, value);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned length)
{
    char serial[16]; /* no path(): to look for faults takes all of its buffers */
    KNOW(out);
    snprintf(serial, sizeof serial, "16500000000%02u", gpu->index % 100);
    return strstr(gpu->column[NAME], "GeForce") ? NVML_ERROR_NOT_SUPPORTED : text_of(gpu, "serial", serial, out, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *out, unsigned length)
{
    KNOW(out);
    return text_of(gpu, "vbios_version", gpu->model->vbios, out, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *out, unsigned length)
{
    KNOW(out);
    return text_of(gpu, "inforom.img", "G520.0200.00.05", out, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *out, unsigned length)
{
    KNOW(out);
    if (object > NVML_INFOROM_ECC)
        return NVML_ERROR_NOT_SUPPORTED;
    return object == NVML_INFOROM_OEM ? text_of(gpu, "inforom.oem", "2.1", out, length) : text_of(gpu, "inforom.ecc", "7.16", out, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
    KNOW(out);
    return capability(gpu) < 75 ? NVML_ERROR_NOT_SUPPORTED : text_of(gpu, "gsp.firmware", driver, out, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled, unsigned *standard)
{
    ASK(enabled && standard);
    *enabled = *standard = capability(gpu) >= 75;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    ASK(device);
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- modes */

/* answered also of a GPU that requires a reset: nvidia-smi asks for it before it resets one */
EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    unsigned long long value;
    KNOW(mode);
    nvmlReturn_t ill = fault(gpu);
    if (ill && ill != NVML_ERROR_RESET_REQUIRED)
        return ill;
    nvmlReturn_t result = number(gpu, "persistence_mode", !access("/run/nvidia-persistenced/nvidia-persistenced.pid", F_OK), &value);
    if (!result)
        *mode = value ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    ASK(device);
    return set(gpu, "persistence_mode", mode ? "Enabled" : "Disabled");
}

static const char *const COMPUTE_MODES[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    char value[64];
    ASK(mode);
    *mode = NVML_COMPUTEMODE_DEFAULT;
    for (unsigned i = 0; health(gpu, "compute_mode", value, sizeof value) && i < COUNT(COMPUTE_MODES); i++)
        if (!strcmp(value, COMPUTE_MODES[i]))
            *mode = (nvmlComputeMode_t)i;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    ASK(device);
    return mode >= COUNT(COMPUTE_MODES) ? NVML_ERROR_INVALID_ARGUMENT : set(gpu, "compute_mode", COMPUTE_MODES[mode]);
}

/* The mode that ECC has now: on, off, NONE. */
static unsigned long long ecc_mode(const struct gpu *gpu)
{
    unsigned long long now, healthy = strstr(gpu->column[ECC], "N/A") ? NONE : !strcmp(gpu->column[ECC], "Enabled");
    return number(gpu, "ecc.mode.current", healthy, &now) ? healthy : now;
}

static unsigned long long with_ecc(const struct gpu *gpu, unsigned long long value) { return ecc_mode(gpu) == 1 ? value : NONE; }

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *next)
{
    unsigned long long current, pending;
    ASK(now && next);
    nvmlReturn_t result = number(gpu, "ecc.mode.current", ecc_mode(gpu), &current);
    if (result || (result = number(gpu, "ecc.mode.pending", current, &pending)))
        return result;
    *now = (nvmlEnableState_t)current;
    *next = (nvmlEnableState_t)pending;
    return NVML_SUCCESS;
}
/* it waits for a reset or a reboot, see reset_gpu and kernel.sh */
EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    ASK(device);
    return ecc_mode(gpu) == NONE ? NVML_ERROR_NOT_SUPPORTED : set(gpu, "ecc.mode.pending", mode ? "Enabled" : "Disabled");
}
EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ASK(mode);
    *mode = NVML_FEATURE_ENABLED;
    return with_ecc(gpu, 1) == NONE ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    unsigned long long value;
    ASK(mode);
    nvmlReturn_t result = number(gpu, "display_mode", 1, &value);
    if (!result)
        *mode = (nvmlEnableState_t)value;
    return result;
}
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, "display_active", 0)
EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
    unsigned long long value;
    KNOW(mode);
    nvmlReturn_t result = number(gpu, "virtualization_mode", 0, &value);
    *mode = (nvmlGpuVirtualizationMode_t)value;
    return result;
}
NUMBER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, "accounting.mode", 0)
NUMBER(nvmlDeviceGetAccountingBufferSize, unsigned, "accounting.buffer_size", 4000)
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, "pstate", 0)
NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, "pstate", 0)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned, "multigpu_board", 0)
static unsigned board_of(const struct gpu *gpu)
{
    nvmlPciInfo_t pci;
    fill_pci(gpu, &pci);
    return pci.bus << 8 | pci.device;
}
NUMBER(nvmlDeviceGetBoardId, unsigned, "board_id", board_of(gpu))
NUMBER(nvmlDeviceGetNumaNodeId, unsigned, "numa_node", NONE) /* memory that is a node of its own: GH200, GB200 */
NUMBER(nvmlDeviceGetIrqNum, unsigned, "irq", 11)
NUMBER(nvmlDeviceGetModuleId, unsigned, "module_id", gpu->index + 1)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, "cores", 16896)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, "memory_bus_width", 5120)

/* ---------------------------------------------------------------- PCIe, clocks, power, temperature */

NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie.link.gen.max", gpu->model->pcie)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "pcie.link.gen.gpumax", gpu->model->pcie)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie.link.gen.current", gpu->model->pcie)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie.link.width.max", 16)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie.link.width.current", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie.replay", 0)
NUMBER(nvmlDeviceGetPcieSpeed, unsigned, "pcie.speed", gpu->model->pcie >= 5 ? 32000 : 16000)

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned *value)
{
    (void)counter;
    ASK(value);
    *value = 500;
    return NVML_SUCCESS;
}

static unsigned full_clock(const struct gpu *gpu, nvmlClockType_t kind)
{
    return kind == NVML_CLOCK_MEM ? gpu->model->memory_mhz : kind == NVML_CLOCK_VIDEO ? gpu->model->sm_mhz * 3 / 4 : gpu->model->sm_mhz;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t kind, unsigned *mhz)
{
    static const char *fields[] = {"clocks.gr", "clocks.sm", "clocks.mem", "clocks.video"};
    unsigned long long value;
    ASK(mhz);
    if (kind >= COUNT(fields))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = number(gpu, fields[kind], kind == NVML_CLOCK_MEM ? gpu->model->memory_mhz : kind == NVML_CLOCK_VIDEO ? 765 : IDLE_MHZ, &value);
    if (!result)
        *mhz = value;
    return result;
}
/* An idle clock that may only be between two. */
static nvmlReturn_t lock(const struct gpu *gpu, const char *field, unsigned idle, unsigned least, unsigned most)
{
    return least > most ? NVML_ERROR_INVALID_ARGUMENT : set(gpu, field, path("%u", idle < least ? least : idle > most ? most : idle));
}
EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned least, unsigned most)
{
    ASK(device);
    if (capability(gpu) < 70) /* Volta and later, nvml.h */
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = lock(gpu, "clocks.gr", IDLE_MHZ, least, most);
    return result ? result : lock(gpu, "clocks.sm", IDLE_MHZ, least, most);
}
EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    ASK(device);
    if (capability(gpu) < 70)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = set(gpu, "clocks.gr", NULL);
    return result ? result : set(gpu, "clocks.sm", NULL);
}
EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned least, unsigned most)
{
    ASK(device);
    return lock(gpu, "clocks.mem", gpu->model->memory_mhz, least, most);
}
EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    ASK(device);
    return set(gpu, "clocks.mem", NULL);
}
EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t kind, unsigned *mhz)
{
    ASK(mhz);
    if (kind >= NVML_CLOCK_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = full_clock(gpu, kind);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t kind, unsigned *mhz) { return nvmlDeviceGetMaxClockInfo(device, kind, mhz); }
EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t kind, unsigned *mhz) { return nvmlDeviceGetMaxClockInfo(device, kind, mhz); }
EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t kind, unsigned *mhz) { return nvmlDeviceGetMaxClockInfo(device, kind, mhz); }
EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t kind, nvmlClockId_t which, unsigned *mhz)
{
    return which == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, kind, mhz) : nvmlDeviceGetMaxClockInfo(device, kind, mhz);
}

/* why clocks are not higher: bit 0 is «idle»; `clocks.reasons` has them as nvidia-smi prints them, 0x… */
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clocks.reasons", 1)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clocks.reasons", 1)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, "clocks.reasons.supported", 0x1ff)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, "clocks.reasons.supported", 0x1ff)

EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *time)
{
    (void)policy;
    ASK(time);
    time->referenceTime = time->violationTime = 0;
    return NVML_SUCCESS;
}

/* NVML's milliwatts of what health has in watts, as nvidia-smi prints them */
#define WATTS(function, field, healthy)                                         \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *out)            \
    {                                                                           \
        unsigned long long value;                                               \
        ASK(out);                                                               \
        nvmlReturn_t result = number(gpu, field, healthy, &value);              \
        if (!result)                                                            \
            *out = value * 1000;                                                \
        return result;                                                          \
    }
static unsigned long long limit_of(const struct gpu *gpu)
{
    unsigned long long value;
    return number(gpu, "power.limit", gpu->model->watts, &value) ? gpu->model->watts : value;
}

WATTS(nvmlDeviceGetPowerUsage, "power.draw", 69)
WATTS(nvmlDeviceGetEnforcedPowerLimit, "enforced.power.limit", limit_of(gpu))
WATTS(nvmlDeviceGetPowerManagementLimit, "power.limit", gpu->model->watts)
WATTS(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_limit", gpu->model->watts)
NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, "power.management", 1)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy", 1000000)
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    ASK(least && most);
    *least = gpu->model->least_watts * 1000;
    *most = gpu->model->watts * 1000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned milliwatts)
{
    ASK(device);
    unsigned watts = milliwatts / 1000;
    if (watts < gpu->model->least_watts || watts > gpu->model->watts)
        return NVML_ERROR_INVALID_ARGUMENT;
    return set(gpu, "power.limit", path("%u", watts));
}
EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *limit)
{
    KNOW(limit);
    (void)gpu;
    return limit->version != nvmlPowerValue_v2 ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : nvmlDeviceSetPowerManagementLimit(device, limit->powerValueMw);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *degrees)
{
    unsigned long long value;
    ASK(degrees);
    if (sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = number(gpu, "temperature.gpu", 33, &value);
    if (!result)
        *degrees = value;
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    unsigned degrees;
    ASK(temperature);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &degrees);
    if (!result)
        temperature->temperature = degrees;
    return result;
}

/* degrees below the limit at which clocks are lowered; only of boards whose thresholds are counted from it */
EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    unsigned degrees;
    ASK(margin);
    if (margin->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &degrees);
    margin->marginTemperature = 87 - (int)degrees;
    return result ? result : gpu->model->limits ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which, unsigned *degrees)
{
    static const unsigned thresholds[] = {92, 89, 95, 85};
    ASK(degrees);
    if (which >= COUNT(thresholds))
        return NVML_ERROR_NOT_SUPPORTED;
    if (which == NVML_TEMPERATURE_THRESHOLD_MEM_MAX && !strchr("HAB", gpu->column[NAME][7]))
        return NVML_ERROR_NOT_SUPPORTED;
    *degrees = thresholds[which];
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetFanSpeed, unsigned, "fan.speed", strstr(gpu->column[NAME], "GeForce") ? 30 : NONE)
NUMBER(nvmlDeviceGetNumFans, unsigned, "fan.count", strstr(gpu->column[NAME], "GeForce") ? 1 : 0)

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    unsigned long long busy, memory;
    ASK(utilization);
    nvmlReturn_t result = number(gpu, "utilization.gpu", 0, &busy);
    if (result || (result = number(gpu, "utilization.memory", 0, &memory)))
        return result;
    utilization->gpu = busy;
    utilization->memory = memory;
    return NVML_SUCCESS;
}

/* Engines that are busy so much of a period of microseconds. */
static nvmlReturn_t busy(nvmlDevice_t device, unsigned *percent, unsigned *period)
{
    ASK(percent && period);
    *percent = 0;
    *period = 16000;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period) { return busy(device, percent, period); }
EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period) { return busy(device, percent, period); }
EXPORT nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period) { return busy(device, percent, period); }
EXPORT nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period) { return busy(device, percent, period); }

/* ---------------------------------------------------------------- memory and its errors */

static nvmlReturn_t memory(nvmlDevice_t device, unsigned long long *total, unsigned long long *used)
{
    unsigned long long mib;
    ASK(device);
    struct instance *mig = as_instance(device);
    *total = strtoull(gpu->column[MIB], NULL, 10) << 20;
    if (!*total)
        return NVML_ERROR_NOT_SUPPORTED; /* unified memory, as a GB10 has it */
    for (unsigned i = 0; mig && i < profile_count; i++)
        if (!strcmp(profiles[i].column[P_SLOT], gpu->column[SLOT]) && (unsigned)atoi(profiles[i].column[P_ID]) == mig->profile)
            *total = (unsigned long long)(atof(profiles[i].column[P_GIB]) * 1024) << 20;
    nvmlReturn_t result = number(gpu, "memory.used", 0, &mib);
    *used = mib << 20;
    return result;
}

/* Hopper and later: what is said of one H100 by driver 580 */
static int is_hopper(const struct gpu *gpu) { return capability(gpu) >= 90; }
/* what the driver keeps for itself; the older function counts it as used */
static unsigned long long reserved(nvmlDevice_t device) { return is_hopper(as_gpu(device)) && !as_instance(device) ? 480ULL << 20 : 0; }

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
    unsigned long long total, used;
    KNOW(info);
    nvmlReturn_t result = memory(device, &total, &used);
    if (!result)
        info->total = total, info->used = used + reserved(device), info->free = total - info->used;
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    unsigned long long total, used;
    KNOW(info);
    if (info->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = memory(device, &total, &used);
    if (!result)
        info->total = total, info->used = used, info->reserved = reserved(device), info->free = total - used - info->reserved;
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *info)
{
    ASK(info);
    info->bar1Total = 131072ULL << 20, info->bar1Used = 1ULL << 20, info->bar1Free = info->bar1Total - info->bar1Used;
    return NVML_SUCCESS;
}

/* what nothing uses here, and a GPU counts all the same */
EXPORT nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *frames, unsigned *latency)
{
    ASK(sessions && frames && latency);
    *sessions = *frames = *latency = 0;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats)
{
    ASK(stats);
    memset(stats, 0, sizeof *stats);
    return NVML_SUCCESS;
}
#define HOPPER(function, type, member)                       \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type *out) \
    {                                                            \
        ASK(out);                                                \
        if (!is_hopper(gpu))                                     \
            return NVML_ERROR_NOT_SUPPORTED;                     \
        out->member = 0;                                         \
        return NVML_SUCCESS;                                     \
    }
HOPPER(nvmlDeviceGetConfComputeProtectedMemoryUsage, nvmlMemory_t, total = out->used = out->free)
HOPPER(nvmlDeviceGetAddressingMode, nvmlDeviceAddressingMode_t, value)
HOPPER(nvmlDeviceGetC2cModeInfoV, nvmlC2cModeInfo_v1_t, isC2cEnabled)
HOPPER(nvmlDeviceGetCapabilities, nvmlDeviceCapabilities_t, capMask)
HOPPER(nvmlDeviceGetUnrepairableMemoryFlag_v1, nvmlUnrepairableMemoryStatus_v1_t, bUnrepairableMemory)
EXPORT nvmlReturn_t nvmlDeviceGetPdi(nvmlDevice_t device, nvmlPdi_t *pdi)
{
    ASK(pdi);
    pdi->value = 0x9ef0000000000000ULL + gpu->index;
    return is_hopper(gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t ecc_errors(const struct gpu *gpu, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t since, unsigned long long *count)
{
    return number(gpu, path("ecc.errors.%s.%s.total", kind == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? "uncorrected" : "corrected", since == NVML_VOLATILE_ECC ? "volatile" : "aggregate"), with_ecc(gpu, 0), count);
}
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t since, unsigned long long *count)
{
    ASK(count);
    return ecc_errors(gpu, kind, since, count);
}
/* all errors are those of the memory, of which Ampere and later say «DRAM», the ones before «device memory»: one number */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t since, nvmlMemoryLocation_t where, unsigned long long *count)
{
    ASK(count);
    if (is_hopper(gpu) && where != NVML_MEMORY_LOCATION_DRAM && where != NVML_MEMORY_LOCATION_SRAM)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = ecc_errors(gpu, kind, since, count);
    if (!result && where != NVML_MEMORY_LOCATION_DRAM)
        *count = 0;
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ASK(status);
    if (with_ecc(gpu, 0) == NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    memset((char *)status + sizeof status->version, 0, sizeof *status - sizeof status->version);
    status->bThresholdExceeded = is_ill(gpu, "ecc.sram.threshold");
    return NVML_SUCCESS;
}

/* rows are remapped by boards that have spare ones (Ampere and later, of data centers), not while MIG is on */
static int mig_mode(const struct gpu *gpu, const char *which);
static unsigned long long with_rows(const struct gpu *gpu) { return capability(gpu) < 80 || mig_mode(gpu, "current") ? NONE : with_ecc(gpu, 0); }

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure)
{
    static const char *fields[] = {"remapped_rows.correctable", "remapped_rows.uncorrectable", "remapped_rows.pending", "remapped_rows.failure"};
    unsigned *out[] = {correctable, uncorrectable, pending, failure};
    unsigned long long value;
    ASK(correctable && uncorrectable && pending && failure);
    for (unsigned i = 0; i < 4; i++) {
        nvmlReturn_t result = number(gpu, fields[i], with_rows(gpu), &value);
        if (result)
            return result;
        *out[i] = value;
    }
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info)
{
    unsigned correctable, uncorrectable, pending, failure;
    KNOW(info);
    nvmlReturn_t result = nvmlDeviceGetRemappedRows(device, &correctable, &uncorrectable, &pending, &failure);
    if (result)
        return result;
    memset(info, 0, sizeof *info);
    info->corrActiveRemaps = correctable;
    info->uncActiveRemaps = uncorrectable;
    info->bPending = pending;
    info->bFailureOccurred = failure;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks)
{
    ASK(banks);
    if (with_rows(gpu) == NONE)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(banks, 0, sizeof *banks);
    banks->max = gpu->model->rows;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    unsigned long long channel, tpc;
    ASK(status);
    nvmlReturn_t result = number(gpu, "ecc.channel_repair_pending", with_rows(gpu), &channel);
    if (result || (result = number(gpu, "ecc.tpc_repair_pending", 0, &tpc)))
        return result;
    status->bChannelRepairPending = channel;
    status->bTpcRepairPending = tpc;
    return NVML_SUCCESS;
}

/* pages are retired by boards before Ampere */
static unsigned long long with_pages(const struct gpu *gpu) { return capability(gpu) >= 80 ? NONE : with_ecc(gpu, 0); }

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    unsigned long long value;
    ASK(pending);
    nvmlReturn_t result = number(gpu, "retired_pages.pending", with_pages(gpu), &value);
    if (!result)
        *pending = (nvmlEnableState_t)value;
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned *count, unsigned long long *addresses, unsigned long long *times)
{
    unsigned long long pages;
    ASK(count);
    nvmlReturn_t result = number(gpu, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? "retired_pages.dbe" : "retired_pages.sbe", with_pages(gpu), &pages);
    if (result)
        return result;
    unsigned room = *count;
    *count = pages;
    if (pages > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pages; i++) {
        if (addresses)
            addresses[i] = 0x5c0000 + i * 0x10;
        if (times)
            times[i] = 1700000000000000ULL;
    }
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned *count, unsigned long long *addresses) { return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL); }

/* ---------------------------------------------------------------- processes */

/* `processes` of standin-health: PID:MIB, parted by commas; those of a GPU as a whole. */
static unsigned read_processes(const struct gpu *gpu, nvmlProcessInfo_v2_t *found, unsigned most)
{
    char text[256], *rest = text, *word;
    unsigned count = 0;
    if (!health(gpu, "processes", text, sizeof text))
        return 0;
    while (count < most && (word = strsep(&rest, ","))) {
        char *mib = strchr(word, ':');
        if (!isdigit(*word))
            continue;
        found[count++] = (nvmlProcessInfo_v2_t){.pid = atoi(word), .usedGpuMemory = (mib ? strtoull(mib + 1, NULL, 10) : 0) << 20, .gpuInstanceId = ~0u, .computeInstanceId = ~0u};
    }
    return count;
}

static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *out, size_t size)
{
    nvmlProcessInfo_v2_t found[32];
    ASK(count);
    unsigned room = *count;
    *count = as_instance(device) ? 0 : read_processes(gpu, found, COUNT(found));
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; out && i < *count; i++)
        memcpy((char *)out + i * size, &found[i], size);
    return NVML_SUCCESS;
}
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
    ASK(count);
    *count = 0;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *out) { return processes(device, count, out, sizeof *out); }
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *out) { return processes(device, count, out, sizeof *out); }
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) { return processes(device, count, out, sizeof *out); }
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *out) { return (void)out, no_processes(device, count); }
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *out) { return (void)out, no_processes(device, count); }
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) { return (void)out, no_processes(device, count); }
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *out) { return (void)out, no_processes(device, count); }
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *out) { return (void)out, no_processes(device, count); }
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) { return (void)out, no_processes(device, count); }
EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids) { return (void)pids, no_processes(device, count); }

/* ---------------------------------------------------------------- NVLinks and the fabric */

/* The links that a driver of that branch can number: 6 at first, 12 with the A100, 18 with the H100. */
static unsigned most_links(void) { return branch() < 450 ? 6 : branch() < 525 ? 12 : branch() < 610 ? 18 : NVML_NVLINK_MAX_LINKS; }

static unsigned link_count(const struct gpu *gpu)
{
    char value[64];
    if (health(gpu, "nvlink", value, sizeof value) && !strcmp(value, "none"))
        return 0;
    return gpu->model->links < most_links() ? gpu->model->links : most_links();
}

/* `nvlink` is of all links of a GPU, `nvlink.N` of one: up or down */
static int link_up(const struct gpu *gpu, unsigned link)
{
    char value[64];
    if (health(gpu, path("nvlink.%u", link), value, sizeof value) || health(gpu, "nvlink", value, sizeof value))
        return says_yes(value);
    return 1;
}

static unsigned links_up(const struct gpu *gpu)
{
    unsigned count = 0;
    for (unsigned link = 0; link < link_count(gpu); link++)
        count += link_up(gpu, link);
    return count;
}

/* The beginning of a question about one link. */
#define LINK(place)                        \
    ASK(place);                            \
    if (link >= most_links())              \
        return NVML_ERROR_INVALID_ARGUMENT; \
    if (link >= link_count(gpu))           \
    return NVML_ERROR_NOT_SUPPORTED

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *active)
{
    LINK(active);
    *active = link_up(gpu, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    LINK(version);
    *version = gpu->model->link_version;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, nvmlNvLinkCapability_t capability, unsigned *able)
{
    LINK(able);
    *able = capability != NVML_NVLINK_CAP_SLI_BRIDGE;
    return NVML_SUCCESS;
}
/* at the other end there is a switch */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, nvmlIntNvLinkDeviceType_t *kind)
{
    LINK(kind);
    *kind = NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    LINK(pci);
    if (!link_up(gpu, link))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    pci->bus = 5 + link % 4;
    pci->pciDeviceId = 0x22a310de;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", 0, pci->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t all;
    LINK(pci);
    nvmlReturn_t result = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &all);
    if (!result)
        memcpy(pci, &all, offsetof(nvmlPciInfo_t, busId));
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
    (void)counter;
    LINK(value);
    *value = 0;
    return NVML_SUCCESS;
}

/* Whether a process of that name runs. */
static int runs(const char *name)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int found = 0;
    while (folder && !found && (entry = readdir(folder))) {
        char *line = isdigit(*entry->d_name) ? contents(path("/proc/%.20s/cmdline", entry->d_name), NULL) : NULL;
        char *base = line ? strrchr(line, '/') : NULL;
        found = line && !strcmp(base ? base + 1 : line, name);
        if (line && !found && base && strlen(line) + 1) { /* a script: the shell's first argument */
            char *second = line + strlen(line) + 1, *last = strrchr(second, '/');
            found = !strcmp(last ? last + 1 : second, name);
        }
        free(line);
    }
    if (folder)
        closedir(folder);
    return found;
}

/* A board with NVSwitches in this very node waits for the fabric manager; elsewhere somebody else's has completed it. */
static int fabric_state(const struct gpu *gpu)
{
    char value[64];
    if (health(gpu, "fabric.state", value, sizeof value)) {
        if (error_of(value))
            return -(int)error_of(value);
        return toupper(*value) == 'C' ? NVML_GPU_FABRIC_STATE_COMPLETED : toupper(*value) == 'I' ? NVML_GPU_FABRIC_STATE_IN_PROGRESS : NVML_GPU_FABRIC_STATE_NOT_STARTED;
    }
    if (!gpu->model->fabric)
        return -NVML_ERROR_NOT_SUPPORTED;
    if (access(path("%s/sys/bus/pci/drivers/nvidia-nvswitch", root()), F_OK) || runs("nv-fabricmanager"))
        return NVML_GPU_FABRIC_STATE_COMPLETED;
    return NVML_GPU_FABRIC_STATE_IN_PROGRESS;
}

static nvmlReturn_t fabric(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
    char value[64];
    ASK(info);
    int state = fabric_state(gpu);
    if (state < 0)
        return -state;
    info->state = state;
    info->status = health(gpu, "fabric.status", value, sizeof value) ? error_of(value) : NVML_SUCCESS;
    info->cliqueId = 0;
    memset(info->clusterUuid, 0, sizeof info->clusterUuid);
    info->healthMask = 0;
    info->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    nvmlGpuFabricInfo_v3_t all;
    KNOW(info);
    if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = fabric(device, &all);
    if (result)
        return result;
    all.version = info->version;
    memcpy(info, &all, info->version == nvmlGpuFabricInfo_v3 ? sizeof all : sizeof(nvmlGpuFabricInfo_v2_t));
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    nvmlGpuFabricInfo_v3_t all;
    KNOW(info);
    nvmlReturn_t result = fabric(device, &all);
    if (!result)
        memcpy(info, all.clusterUuid, sizeof *info); /* the same members, without the version before them */
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
    nvmlGpuFabricInfo_v3_t all;
    KNOW(info);
    nvmlReturn_t result = fabric(device, &all);
    if (result)
        return result;
    memset(info, 0, sizeof *info);
    info->status = all.status;
    info->state = all.state;
    info->numCliques = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t which, nvmlGpuP2PStatus_t *status)
{
    ASK(status && as_gpu(other));
    *status = which == NVML_P2P_CAPS_INDEX_NVLINK && !(link_count(gpu) && link_count(as_gpu(other))) ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    KNOW(level && as_gpu(other));
    *level = gpu == as_gpu(other) ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
    return NVML_SUCCESS;
}

static nvmlReturn_t affinity(nvmlDevice_t device, unsigned size, unsigned long *set, unsigned long bits)
{
    KNOW(set && size);
    memset(set, 0, size * sizeof *set);
    set[0] = bits;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *set) { return affinity(device, size, set, 0xff); }
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned size, unsigned long *set, nvmlAffinityScope_t scope) { return (void)scope, affinity(device, size, set, 0xff); }
EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *set, nvmlAffinityScope_t scope) { return (void)scope, affinity(device, size, set, 1); }

/* ---------------------------------------------------------------- field values */

static nvmlReturn_t recovery(const struct gpu *gpu, unsigned long long *action)
{
    static const char *words[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain", "Bus Reset", "System Reboot"};
    char value[64];
    *action = is_ill(gpu, "reset") ? NVML_GPU_RECOVERY_ACTION_GPU_RESET : NVML_GPU_RECOVERY_ACTION_NONE;
    if (!health(gpu, "gpu_recovery_action", value, sizeof value))
        return NVML_SUCCESS;
    for (unsigned i = 0; i < COUNT(words); i++)
        if (!strcasecmp(value, words[i])) {
            *action = i;
            return NVML_SUCCESS;
        }
    return error_of(value) ? error_of(value) : NVML_ERROR_UNKNOWN;
}

/* power of the GPU (scope 0); of modules and memories nothing is known */
static nvmlReturn_t watts(const struct gpu *gpu, nvmlFieldValue_t *asked, const char *name, unsigned healthy, unsigned long long *value)
{
    asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    nvmlReturn_t result = asked->scopeId ? NVML_ERROR_NOT_SUPPORTED : number(gpu, name, healthy, value);
    *value *= 1000;
    return result;
}

static nvmlReturn_t field(const struct gpu *gpu, nvmlFieldValue_t *asked)
{
    unsigned long long value = 0;
    unsigned id = asked->fieldId;
    nvmlReturn_t result = fault(gpu);
    asked->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    if (id == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) { /* the driver answers it also of a GPU that does not speak */
        asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        result = branch() < 570 ? NVML_ERROR_NOT_SUPPORTED : is_ill(gpu, "lost") ? result : recovery(gpu, &value);
        asked->value.ullVal = value;
        return result;
    }
    if (result)
        return result;
    if (id >= NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT && id <= NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT) {
        static const int limits[] = {-8, -2, 0, 0};
        asked->valueType = NVML_VALUE_TYPE_SIGNED_INT;
        asked->value.ullVal = 0;
        asked->value.siVal = limits[id - NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT];
        return gpu->model->limits ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    unsigned links = link_count(gpu), link = asked->scopeId;
    if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L5)
        link = id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, id = NVML_FI_DEV_NVLINK_GET_SPEED;
    else if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L11)
        link = 6 + id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L6, id = NVML_FI_DEV_NVLINK_GET_SPEED;
    switch (id) {
    case NVML_FI_DEV_REMAPPED_COR: result = number(gpu, "remapped_rows.correctable", with_rows(gpu), &value); break;
    case NVML_FI_DEV_REMAPPED_UNC: result = number(gpu, "remapped_rows.uncorrectable", with_rows(gpu), &value); break;
    case NVML_FI_DEV_REMAPPED_PENDING: result = number(gpu, "remapped_rows.pending", with_rows(gpu), &value); break;
    case NVML_FI_DEV_REMAPPED_FAILURE: result = number(gpu, "remapped_rows.failure", with_rows(gpu), &value); break;
    case NVML_FI_DEV_RETIRED_PENDING: result = number(gpu, "retired_pages.pending", with_pages(gpu), &value); break;
    case NVML_FI_DEV_RETIRED_SBE: result = number(gpu, "retired_pages.sbe", with_pages(gpu), &value); break;
    case NVML_FI_DEV_RETIRED_DBE: result = number(gpu, "retired_pages.dbe", with_pages(gpu), &value); break;
    case NVML_FI_DEV_ECC_CURRENT: result = number(gpu, "ecc.mode.current", ecc_mode(gpu), &value); break;
    case NVML_FI_DEV_ECC_PENDING: result = number(gpu, "ecc.mode.pending", ecc_mode(gpu), &value); break;
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL: result = ecc_errors(gpu, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, &value); break;
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL: result = ecc_errors(gpu, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &value); break;
    case NVML_FI_DEV_MEMORY_TEMP: result = number(gpu, "temperature.memory", gpu->model->links ? 37 : NONE, &value); break;
    case NVML_FI_DEV_PERF_POLICY_POWER:
    case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
    case NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER: break; /* never */
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT: result = watts(gpu, asked, "power.draw", 69, &value); break;
    case NVML_FI_DEV_POWER_MIN_LIMIT: result = watts(gpu, asked, "power.min_limit", gpu->model->least_watts, &value); break;
    case NVML_FI_DEV_POWER_MAX_LIMIT: result = watts(gpu, asked, "power.max_limit", gpu->model->watts, &value); break;
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT: result = watts(gpu, asked, "power.default_limit", gpu->model->watts, &value); break;
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: result = watts(gpu, asked, "power.limit", gpu->model->watts, &value); break;
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: result = watts(gpu, asked, "enforced.power.limit", limit_of(gpu), &value); break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT: asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT; value = links; break;
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT: asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT; value = links_up(gpu); break;
    case NVML_FI_DEV_C2C_LINK_COUNT: asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT; break;
    case NVML_FI_DEV_NVLINK_GET_SPEED:
    case NVML_FI_DEV_NVLINK_GET_STATE:
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        asked->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        if (link >= links)
            return NVML_ERROR_NOT_SUPPORTED;
        value = id == NVML_FI_DEV_NVLINK_GET_SPEED ? gpu->model->link_mbps : id == NVML_FI_DEV_NVLINK_GET_STATE ? (unsigned)link_up(gpu, link) : gpu->model->link_version;
        if (id == NVML_FI_DEV_NVLINK_GET_SPEED && !link_up(gpu, link))
            value = 0;
        break;
    default: result = NVML_ERROR_NOT_SUPPORTED; trace(path("field %u scope %u", id, asked->scopeId));
    }
    asked->value.ullVal = value;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *asked)
{
    KNOW(asked && count > 0);
    for (int i = 0; i < count; i++) {
        asked[i].timestamp = asked[i].latencyUsec = 0;
        asked[i].nvmlReturn = field(gpu, &asked[i]);
    }
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- events: there are none */

static int no_events;
EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) { return set ? *set = (nvmlEventSet_t)&no_events, NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; }
EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { return (void)set, NVML_SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) { return (void)device, types ? *types = 0xff9f, NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; }
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) { return (void)device, (void)types, (void)set, NVML_SUCCESS; }
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout)
{
    (void)set, (void)data;
    usleep(timeout < 1000 ? timeout * 1000 : 1000000);
    return NVML_ERROR_TIMEOUT;
}

/* ---------------------------------------------------------------- MIG: its modes */

static struct profile *profile_of(const struct gpu *gpu, unsigned id)
{
    for (unsigned i = 0; i < profile_count; i++)
        if (!strcmp(profiles[i].column[P_SLOT], gpu->column[SLOT]) && (unsigned)atoi(profiles[i].column[P_ID]) == id)
            return &profiles[i];
    return NULL;
}

static int has_mig(const struct gpu *gpu)
{
    for (unsigned i = 0; i < profile_count; i++)
        if (!strcmp(profiles[i].column[P_SLOT], gpu->column[SLOT]))
            return 1;
    return 0;
}

/* A100 and A30: the mode waits for a reset where there can be none, and outlives a reboot */
static int keeps_mode(const struct gpu *gpu)
{
    for (unsigned i = 0; i < profile_count; i++)
        if (!strcmp(profiles[i].column[P_SLOT], gpu->column[SLOT]))
            return !strcmp(profiles[i].column[P_KEPT], "kept");
    return 0;
}

static int mig_mode(const struct gpu *gpu, const char *which)
{
    char *text = contents(path("%s/mig/%s/%s", root(), gpu->column[SLOT], which), NULL);
    int on = text && !strncmp(text, "Enabled", 7);
    free(text);
    return on;
}

static void put_mode(const struct gpu *gpu, const char *which, int on)
{
    make_folders(path("%s/mig/%s/gi", root(), gpu->column[SLOT]));
    write_file(path("%s/mig/%s/%s", root(), gpu->column[SLOT], which), on ? "Enabled\n" : "Disabled\n");
}

/* Whether some process has that file open, this one left out. */
static int is_held(const char *name)
{
    int found = 0;
    struct dirent *entry, *file;
    DIR *all = opendir("/proc");
    while (all && !found && (entry = readdir(all))) {
        if (!isdigit(*entry->d_name) || atoi(entry->d_name) == getpid())
            continue;
        DIR *open_files = opendir(path("/proc/%.20s/fd", entry->d_name));
        while (open_files && !found && (file = readdir(open_files))) {
            char target[PATH];
            ssize_t length = readlink(path("/proc/%.20s/fd/%.20s", entry->d_name, file->d_name), target, sizeof target - 1);
            target[length > 0 ? length : 0] = 0;
            found = !strcmp(target, name);
        }
        if (open_files)
            closedir(open_files);
    }
    if (all)
        closedir(all);
    return found;
}

static int in_use(const struct gpu *gpu)
{
    return own_root() ? is_ill(gpu, "in-use") : is_held(path("/dev/nvidia%u", gpu->minor));
}

static int no_reset(void) { return !access(path("%s/no-gpu-reset", root()), F_OK); }

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *next)
{
    char value[64];
    ASK(now && next);
    if (!has_mig(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (health(gpu, "mig.mode.current", value, sizeof value) && error_of(value))
        return error_of(value);
    *now = mig_mode(gpu, "current");
    *next = mig_mode(gpu, "pending");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    struct instance *found[MOST_INSTANCES];
    ASK(activation);
    if (!has_mig(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *activation = NVML_SUCCESS;
    if (!mode && read_instances(gpu, found))
        return NVML_ERROR_IN_USE;
    put_mode(gpu, "pending", mode);
    if (mig_mode(gpu, "current") == (int)mode)
        return NVML_SUCCESS;
    if (in_use(gpu))
        *activation = NVML_ERROR_IN_USE;
    else if (keeps_mode(gpu) && no_reset())
        *activation = NVML_ERROR_NOT_SUPPORTED;
    else
        put_mode(gpu, "current", mode);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    ASK(count);
    *count = has_mig(gpu) && mig_mode(gpu, "current") ? 7 : 0;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- MIG: GPU instances */

static const char *instance_file(const struct gpu *gpu, unsigned id) { return path("%s/mig/%s/gi/%u", root(), gpu->column[SLOT], id); }

static unsigned cap_of(const struct gpu *gpu, unsigned gi) { return 3 + gpu->minor * 150 + gi * 10; }

/* Without its file in /dev an instance is not there: a container has those of its own instances alone. */
static int may_use(const struct gpu *gpu, unsigned gi) { return own_root() || !access(path("/dev/nvidia-caps/nvidia-cap%u", cap_of(gpu, gi)), F_OK); }

/* The instances of a GPU as their files have them, in order; they keep their places, which are their handles. */
static unsigned read_instances(struct gpu *gpu, struct instance **found)
{
    unsigned count = 0;
    for (unsigned id = 1; id < MOST_INSTANCES; id++) {
        struct instance *one = &instances[gpu->index][id];
        FILE *file = may_use(gpu, id) ? fopen(instance_file(gpu, id), "r") : NULL;
        int compute;
        one->there = file && fscanf(file, "%31s %u %u %u", one->name, &one->profile, &one->start, &one->size) == 4;
        one->computes = one->there && fscanf(file, "%d", &compute) == 1;
        if (file)
            fclose(file);
        if (!one->there)
            continue;
        one->gpu = gpu;
        one->id = id;
        found[count++] = one;
    }
    return count;
}

/* The same UUID as mig.sh makes: of the MD5 of «SLOT ID».  This is RFC 1321, for texts of one block. */
static void md5(const char *text, unsigned char digest[16])
{
    static const unsigned char turns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
    static const unsigned sines[64] = {
        0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8, 0x8b44f7af, 0xffff5bb1,
        0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453,
        0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a, 0xfffa3942,
        0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05,
        0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d,
        0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};
    unsigned block[16] = {0}, state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
    size_t length = strlen(text);
    memcpy(block, text, length);
    ((unsigned char *)block)[length] = 0x80;
    block[14] = length * 8;
    unsigned a = state[0], b = state[1], c = state[2], d = state[3];
    for (unsigned i = 0; i < 64; i++) {
        unsigned mix = i < 16 ? (b & c) | (~b & d) : i < 32 ? (d & b) | (~d & c) : i < 48 ? b ^ c ^ d : c ^ (b | ~d);
        unsigned which = i < 16 ? i : i < 32 ? (5 * i + 1) % 16 : i < 48 ? (3 * i + 5) % 16 : 7 * i % 16;
        unsigned sum = a + mix + sines[i] + block[which], turn = turns[i / 16][i % 4];
        a = d, d = c, c = b;
        b += sum << turn | sum >> (32 - turn);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    memcpy(digest, state, 16);
}

static const char *mig_uuid(const struct instance *mig)
{
    unsigned char d[16];
    md5(path("%.40s %u", mig->gpu->column[SLOT], mig->id), d);
    return path("MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10], d[11], d[12], d[13], d[14], d[15]);
}

/* What stands in /proc and /dev for the right to use an instance, as mig.sh has it. */
static void grant(const struct gpu *gpu, unsigned gi, int compute, int on)
{
    unsigned minor = cap_of(gpu, gi) + (compute ? 1 : 0);
    char *folder = path("%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u%s", root(), gpu->minor, gi, compute ? "/ci0" : "");
    const char *caps = own_root() ? path("%s/dev-caps", root()) : "/dev/nvidia-caps";
    if (on) {
        make_folders(folder);
        write_file(path("%s/access", folder), path("DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor));
        mkdir(caps, 0755);
        const char *file = path("%s/nvidia-cap%u", caps, minor);
        if (own_root() || mknod(file, S_IFCHR | 0444, makedev(511, minor)))
            write_file(file, "");
    } else {
        unlink(path("%s/access", folder));
        rmdir(folder);
        unlink(path("%s/nvidia-cap%u", caps, minor));
    }
}

static int is_used(const struct instance *one)
{
    unsigned first = cap_of(one->gpu, one->id);
    return !own_root() && (is_held(path("/dev/nvidia-caps/nvidia-cap%u", first)) || is_held(path("/dev/nvidia-caps/nvidia-cap%u", first + 1)));
}

/* Multiprocessors, copy engines and media engines of a profile.  GPCs of an H100 differ in their size: its profiles have
   what mig -lgip of a real one says, those of others so much a slice. */
struct engines {
    unsigned cores, copy, media;
};
static struct engines engines_of(const struct gpu *gpu, const struct profile *profile)
{
    static const struct { int compute, memory; struct engines have; } H100[] = {
        {1, 1, {16, 1, 1}}, {1, 2, {26, 1, 1}}, {2, 2, {32, 2, 2}}, {3, 4, {60, 3, 3}}, {4, 4, {64, 4, 4}}, {7, 8, {132, 8, 7}}};
    int compute = atoi(profile->column[P_COMPUTE]), memory = atoi(profile->column[P_MEMORY]);
    for (unsigned i = 0; capability(gpu) == 90 && i < COUNT(H100); i++)
        if (H100[i].compute == compute && H100[i].memory == memory)
            return H100[i].have;
    unsigned slice = gpu->model->sm_per_slice ? gpu->model->sm_per_slice : 14;
    return (struct engines){slice * compute, compute, atoi(profile->column[P_MEDIA])};
}
static unsigned cores(const struct instance *one)
{
    const struct profile *profile = profile_of(one->gpu, one->profile);
    return profile ? engines_of(one->gpu, profile).cores : 0;
}

/* NVML's number of a kind of instance; which kinds there are depends on slices and suffix of the profile's name. */
static unsigned kind_of(const struct profile *profile, int whole_slices)
{
    const char *name = profile->column[P_NAME];
    int compute = atoi(profile->column[P_COMPUTE]), media = strstr(name, "+me") != NULL, graphics = strstr(name, "+gfx") != NULL;
    if (strstr(name, "-me")) /* no media engines */
        return compute == 1 ? NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME : NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME;
    if (strstr(name, "+me.all"))
        return compute == 1 ? NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME : NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME;
    if (media)
        return compute == 1 ? NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 : NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1;
    if (graphics)
        return compute == 1 ? NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX : compute == 2 ? NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX : NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX;
    switch (compute) {
    case 1: return whole_slices == 7 && atoi(profile->column[P_MEMORY]) > 1 ? NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 : NVML_GPU_INSTANCE_PROFILE_1_SLICE;
    case 2: return NVML_GPU_INSTANCE_PROFILE_2_SLICE;
    case 3: return NVML_GPU_INSTANCE_PROFILE_3_SLICE;
    case 4: return NVML_GPU_INSTANCE_PROFILE_4_SLICE;
    case 6: return NVML_GPU_INSTANCE_PROFILE_6_SLICE;
    case 7: return NVML_GPU_INSTANCE_PROFILE_7_SLICE;
    default: return NVML_GPU_INSTANCE_PROFILE_8_SLICE;
    }
}

static struct profile *profile_of_kind(const struct gpu *gpu, unsigned kind)
{
    for (unsigned i = 0; i < profile_count; i++)
        if (!strcmp(profiles[i].column[P_SLOT], gpu->column[SLOT]) && kind_of(&profiles[i], atoi(profiles[i].column[P_TOTALS])) == kind)
            return &profiles[i];
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    ASK(info && whole(device));
    unsigned version = info->version;
    if (version != nvmlGpuInstanceProfileInfo_v2 && version != nvmlGpuInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct profile *profile = profile_of_kind(gpu, kind);
    if (!profile)
        return NVML_ERROR_NOT_SUPPORTED;
    struct engines have = engines_of(gpu, profile);
    nvmlGpuInstanceProfileInfo_v3_t all = {
        .version = version, .id = atoi(profile->column[P_ID]), .sliceCount = atoi(profile->column[P_COMPUTE]), .instanceCount = atoi(profile->column[P_MOST]),
        .multiprocessorCount = have.cores, .copyEngineCount = have.copy, .decoderCount = have.media, .jpegCount = have.media,
        .ofaCount = atoi(profile->column[P_OFA]), .memorySizeMB = atof(profile->column[P_GIB]) * 1024};
    snprintf(all.name, sizeof all.name, "MIG %s", profile->column[P_NAME]);
    if (version == nvmlGpuInstanceProfileInfo_v3) {
        memcpy(info, &all, sizeof all);
        return NVML_SUCCESS;
    }
    info->id = all.id, info->isP2pSupported = 0, info->memorySizeMB = all.memorySizeMB;
    memcpy(&info->sliceCount, &all.sliceCount, 8 * sizeof all.sliceCount);
    memcpy(info->name, all.name, sizeof info->name);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_t *info)
{
    nvmlGpuInstanceProfileInfo_v2_t all = {.version = nvmlGpuInstanceProfileInfo_v2};
    KNOW(info);
    nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfoV(device, kind, &all);
    if (!result) {
        memcpy(info, &all.id, 10 * sizeof all.id);
        info->memorySizeMB = all.memorySizeMB;
    }
    return result;
}

/* Whether an instance of that profile can begin there: it does not overlap, and enough of every engine is left. */
static int has_room(struct gpu *gpu, const struct profile *profile, unsigned start)
{
    struct instance *found[MOST_INSTANCES];
    int most[4] = {0}, alike = 0, size = atoi(profile->column[P_MEMORY]);
    int used[4] = {atoi(profile->column[P_COMPUTE]), 0, atoi(profile->column[P_MEDIA]), atoi(profile->column[P_OFA])};
    unsigned taken = 0;
    sscanf(profile->column[P_TOTALS], "%d %d %d %d", &most[0], &most[1], &most[2], &most[3]);
    for (unsigned i = 0, count = read_instances(gpu, found); i < count; i++) {
        struct profile *other = profile_of(gpu, found[i]->profile);
        taken |= ((1u << found[i]->size) - 1) << found[i]->start;
        if (!other)
            continue;
        alike += other == profile;
        used[0] += atoi(other->column[P_COMPUTE]);
        used[2] += atoi(other->column[P_MEDIA]);
        used[3] += atoi(other->column[P_OFA]);
    }
    return !(taken & ((1u << size) - 1) << start) && alike < atoi(profile->column[P_MOST]) && used[0] <= most[0] && used[2] <= most[2] && used[3] <= most[3];
}

#define EACH_START(profile, start) for (char *at = (profile)->column[P_STARTS], *end = at; start = strtoul(at, &end, 10), end != at; at = end)

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
    unsigned start;
    ASK(count);
    struct profile *profile = profile_of(gpu, id);
    if (!profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    EACH_START(profile, start)
        *count += has_room(gpu, profile, start);
    struct instance *found[MOST_INSTANCES];
    int left = atoi(profile->column[P_MOST]);
    for (unsigned i = 0, all = read_instances(gpu, found); i < all; i++)
        left -= found[i]->profile == id;
    if ((int)*count > left)
        *count = left > 0 ? left : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id, nvmlGpuInstancePlacement_t *places, unsigned *count)
{
    unsigned start, all = 0;
    ASK(count);
    struct profile *profile = profile_of(gpu, id);
    if (!profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    EACH_START(profile, start)
    {
        if (places)
            places[all] = (nvmlGpuInstancePlacement_t){.start = start, .size = atoi(profile->column[P_MEMORY])};
        all++;
    }
    *count = all;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id, nvmlGpuInstancePlacement_t *places, unsigned *count) { return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, places, count); }

static nvmlReturn_t create_instance(struct gpu *gpu, unsigned id, const nvmlGpuInstancePlacement_t *wanted, nvmlGpuInstance_t *out)
{
    unsigned start, number = 1;
    struct instance *found[MOST_INSTANCES];
    struct profile *profile = profile_of(gpu, id);
    if (!profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!mig_mode(gpu, "current"))
        return NVML_ERROR_NOT_SUPPORTED;
    EACH_START(profile, start)
    {
        if ((wanted && wanted->start != start) || !has_room(gpu, profile, start))
            continue;
        while (number < MOST_INSTANCES && !access(instance_file(gpu, number), F_OK))
            number++;
        if (number == MOST_INSTANCES)
            break;
        make_folders(path("%s/mig/%s/gi", root(), gpu->column[SLOT]));
        write_file(instance_file(gpu, number), path("%s %u %u %s\n", profile->column[P_NAME], id, start, profile->column[P_MEMORY]));
        grant(gpu, number, 0, 1);
        read_instances(gpu, found);
        *out = (nvmlGpuInstance_t)&instances[gpu->index][number];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    ASK(out);
    return create_instance(gpu, id, NULL, out);
}
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id, const nvmlGpuInstancePlacement_t *wanted, nvmlGpuInstance_t *out)
{
    ASK(out);
    return create_instance(gpu, id, wanted, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    struct instance *found[MOST_INSTANCES];
    ASK(count);
    unsigned all = read_instances(gpu, found), alike = 0;
    for (unsigned i = 0; i < all; i++)
        if (found[i]->profile == id) {
            if (out)
                out[alike] = (nvmlGpuInstance_t)found[i];
            alike++;
        }
    *count = alike;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    struct instance *found[MOST_INSTANCES];
    ASK(out);
    for (unsigned i = 0, all = read_instances(gpu, found); i < all; i++)
        if (found[i]->id == id) {
            *out = (nvmlGpuInstance_t)found[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* The beginning of a question about an instance. */
#define INSTANCE(handle, place)                              \
    struct instance *one = as_instance(handle);              \
    if (!one || !(place))                                    \
        return NVML_ERROR_INVALID_ARGUMENT

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    INSTANCE(instance, info);
    *info = (nvmlGpuInstanceInfo_t){.device = (nvmlDevice_t)one->gpu, .id = one->id, .profileId = one->profile, .placement = {.start = one->start, .size = one->size}};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    INSTANCE(instance, instance);
    if (one->computes || is_used(one))
        return NVML_ERROR_IN_USE;
    unlink(instance_file(one->gpu, one->id));
    grant(one->gpu, one->id, 0, 0);
    one->there = 0;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- MIG: compute instances; one fills its GPU instance */

static unsigned slices(const struct instance *one)
{
    struct profile *profile = profile_of(one->gpu, one->profile);
    return profile ? atoi(profile->column[P_COMPUTE]) : 1;
}

static unsigned compute_kind(const struct instance *one)
{
    unsigned count = slices(one);
    return count == 7 ? NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE : count == 8 ? NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE : count == 6 ? NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE : count - 1;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned kind, unsigned engines, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    INSTANCE(instance, info);
    unsigned version = info->version;
    if (version != nvmlComputeInstanceProfileInfo_v2 && version != nvmlComputeInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (kind != compute_kind(one) || engines)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlComputeInstanceProfileInfo_v3_t all = {.version = version, .id = kind, .sliceCount = slices(one), .instanceCount = 1, .multiprocessorCount = cores(one)};
    snprintf(all.name, sizeof all.name, "MIG %s", one->name);
    memcpy(info, &all, version == nvmlComputeInstanceProfileInfo_v3 ? sizeof all : sizeof *info);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned kind, unsigned engines, nvmlComputeInstanceProfileInfo_t *info)
{
    nvmlComputeInstanceProfileInfo_v2_t all = {.version = nvmlComputeInstanceProfileInfo_v2};
    INSTANCE(instance, info);
    (void)one;
    nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, kind, engines, &all);
    if (!result)
        memcpy(info, &all.id, sizeof *info);
    return result;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id, unsigned *count)
{
    (void)id;
    INSTANCE(instance, count);
    *count = !one->computes;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstancePlacement_t *places, unsigned *count)
{
    (void)id;
    INSTANCE(instance, count);
    *count = 1;
    if (places)
        places[0] = (nvmlComputeInstancePlacement_t){.start = 0, .size = slices(one)};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    INSTANCE(instance, out);
    if (id != compute_kind(one))
        return NVML_ERROR_NOT_SUPPORTED;
    if (one->computes)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    FILE *file = fopen(instance_file(one->gpu, one->id), "a");
    if (!file)
        return NVML_ERROR_NO_PERMISSION;
    fputs("0\n", file);
    fclose(file);
    one->computes = 1;
    grant(one->gpu, one->id, 1, 1);
    *out = (nvmlComputeInstance_t)one;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned id, const nvmlComputeInstancePlacement_t *wanted, nvmlComputeInstance_t *out)
{
    return wanted && wanted->start ? NVML_ERROR_INSUFFICIENT_RESOURCES : nvmlGpuInstanceCreateComputeInstance(instance, id, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out, unsigned *count)
{
    INSTANCE(instance, count);
    *count = one->computes && id == compute_kind(one);
    if (*count && out)
        out[0] = (nvmlComputeInstance_t)one;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    INSTANCE(instance, out);
    if (id || !one->computes)
        return NVML_ERROR_NOT_FOUND;
    *out = (nvmlComputeInstance_t)one;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    INSTANCE(instance, info);
    *info = (nvmlComputeInstanceInfo_t){.device = (nvmlDevice_t)one->gpu, .gpuInstance = (nvmlGpuInstance_t)one, .id = 0, .profileId = compute_kind(one), .placement = {.start = 0, .size = slices(one)}};
    return NVML_SUCCESS;
}
/* the first one's structure ends before the placement */
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    nvmlComputeInstanceInfo_t all;
    INSTANCE(instance, info);
    (void)one;
    nvmlReturn_t result = nvmlComputeInstanceGetInfo_v2(instance, &all);
    if (!result)
        memcpy(info, &all, offsetof(nvmlComputeInstanceInfo_t, placement));
    return result;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    INSTANCE(instance, instance);
    if (is_used(one))
        return NVML_ERROR_IN_USE;
    write_file(instance_file(one->gpu, one->id), path("%s %u %u %u\n", one->name, one->profile, one->start, one->size));
    one->computes = 0;
    grant(one->gpu, one->id, 1, 0);
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- MIG devices */

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
    KNOW(is);
    *is = as_instance(device) != NULL;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    struct instance *found[MOST_INSTANCES];
    ASK(out && whole(device));
    if (!has_mig(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0, all = read_instances(gpu, found); i < all; i++)
        if (found[i]->computes && !index--) {
            *out = (nvmlDevice_t)found[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    INSTANCE(device, out);
    *out = (nvmlDevice_t)one->gpu;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    KNOW(id);
    struct instance *mig = as_instance(device);
    *id = mig ? mig->id : 0;
    return mig ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    KNOW(id);
    *id = 0;
    return as_instance(device) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *info)
{
    KNOW(info);
    struct instance *mig = as_instance(device);
    struct profile *profile = mig ? profile_of(gpu, mig->profile) : NULL;
    if (!profile)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned compute = slices(mig);
    struct engines have = engines_of(gpu, profile);
    *info = (nvmlDeviceAttributes_t){
        .multiprocessorCount = have.cores, .sharedCopyEngineCount = have.copy, .sharedDecoderCount = have.media, .sharedJpegCount = have.media,
        .sharedOfaCount = atoi(profile->column[P_OFA]), .gpuInstanceSliceCount = compute, .computeInstanceSliceCount = compute,
        .memorySizeMB = atof(profile->column[P_GIB]) * 1024};
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *info) { return nvmlDeviceGetAttributes_v2(device, info); }

/* ---------------------------------------------------------------- what nvidia-smi asks behind nvml.h's back */

/*
 * nvidia-smi refuses a library without the table that nvmlInternalGetExportTable gives: its size in bytes, then
 * functions.  What each number does was found by looking at what nvidia-smi of 390 to 615 passes and prints.
 */
static nvmlReturn_t unknown_slot(unsigned slot, void *first)
{
    trace(path("internal %u%s", slot - 100, as_gpu(first) ? " of a GPU" : ""));
    return NVML_ERROR_NOT_SUPPORTED;
}

#define SLOT_FUNCTION(n) static nvmlReturn_t slot_##n(void *first) { return unknown_slot(n, first); }
#define TEN(do, n) do(n##0) do(n##1) do(n##2) do(n##3) do(n##4) do(n##5) do(n##6) do(n##7) do(n##8) do(n##9)
#define HUNDRED(do, n) TEN(do, n##0) TEN(do, n##1) TEN(do, n##2) TEN(do, n##3) TEN(do, n##4) TEN(do, n##5) TEN(do, n##6) TEN(do, n##7) TEN(do, n##8) TEN(do, n##9)
#define ALL(do) HUNDRED(do, 1) HUNDRED(do, 2) HUNDRED(do, 3) TEN(do, 40) TEN(do, 41)
ALL(SLOT_FUNCTION) /* numbered from 100, for 07 and the like would not be the same words */

/*
 * 23: how two slots are joined: 0 one bridge, 1 several, 2 a host bridge, 3 the same node, 4 the system.  NVLinks are
 * 4 + links up to 460; later nvidia-smi asks each GPU how many of them lead to switches.
 */
static nvmlReturn_t slot_topology(const char *one, const char *other, unsigned *level)
{
    nvmlDevice_t ends[2];
    if (!one || !other || !level || nvmlDeviceGetHandleByPciBusId_v2(one, &ends[0]) || nvmlDeviceGetHandleByPciBusId_v2(other, &ends[1]))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned links = links_up(as_gpu(ends[0])), others = links_up(as_gpu(ends[1]));
    links = links < others ? links : others;
    *level = links && branch() < 470 ? 4 + links : 2;
    return NVML_SUCCESS;
}

/* 20: whether the GPU is the primary one, which cannot be reset */
static nvmlReturn_t slot_primary(nvmlDevice_t device, unsigned *primary)
{
    KNOW(primary);
    *primary = 0;
    return NVML_SUCCESS;
}

/* 65: the kind of chip, also of a GPU that requires a reset; 0 is one that can be reset by itself */
static nvmlReturn_t slot_chip(nvmlDevice_t device, unsigned *kind)
{
    KNOW(kind);
    *kind = 0;
    return NVML_SUCCESS;
}

/* 81: the slot of a GPU, also of one whose handle is not given, as a text of 34 bytes */
static nvmlReturn_t slot_name(unsigned index, char *name, unsigned length)
{
    nvmlPciInfo_t pci;
    if (index >= gpu_count || !name)
        return NVML_ERROR_INVALID_ARGUMENT;
    fill_pci(&gpus[index], &pci);
    return say(name, length, pci.busId);
}

/* 157, 214, 215: processes of kinds that no GPU here has */
static nvmlReturn_t slot_no_processes(nvmlDevice_t device, unsigned *count) { return no_processes(device, count); }

/* 213: compute processes, from 510 on: a head of 24 bytes, a name of 4096, then 8 bytes more of 535 and from 550 on */
static nvmlReturn_t slot_processes(nvmlDevice_t device, unsigned *count, char *out)
{
    nvmlProcessInfo_v2_t found[32];
    size_t size = branch() < 535 || branch() == 545 ? 4120 : 4128;
    ASK(count && out);
    unsigned all = as_instance(device) ? 0 : read_processes(gpu, found, COUNT(found));
    *count = all < *count ? all : *count;
    for (unsigned i = 0; i < *count; i++, out += size) {
        memset(out, 0, size);
        memcpy(out, &found[i], sizeof found[i]);
        nvmlSystemGetProcessName(found[i].pid, out + sizeof found[i], 4096);
    }
    return NVML_SUCCESS;
}

/* 169: NVSwitches that GPUs share; none */
static nvmlReturn_t slot_none(unsigned *count)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

/* 270: GPUs that nobody lists, in a structure with a version; none */
static nvmlReturn_t slot_unlisted(unsigned *versioned) { return slot_none(versioned ? versioned + 1 : NULL); }

/*
 * --gpu-reset: 182 makes a group of GPUs, 183 says which others must be reset with them (none), 184 forgets the group,
 * 168 resets them, with a result for each.  From 595 on 272 takes them by their slots and 273 resets what it took.
 */
static struct gpu *taken[MOST_GPUS];
static unsigned taken_count;

/* What a reset does to a GPU; what it cures is gone from standin-health. */
static nvmlReturn_t reset_gpu(struct gpu *gpu)
{
    static const char *const cured[] = {"reset", "remapped_rows.pending", "gpu_recovery_action"};
    struct instance *found[MOST_INSTANCES];
    if (no_reset())
        return NVML_ERROR_NOT_SUPPORTED;
    if (in_use(gpu))
        return NVML_ERROR_IN_USE;
    for (unsigned i = 0, all = has_mig(gpu) ? read_instances(gpu, found) : 0; i < all; i++) {
        unlink(instance_file(gpu, found[i]->id));
        grant(gpu, found[i]->id, 1, 0);
        grant(gpu, found[i]->id, 0, 0);
    }
    if (has_mig(gpu))
        put_mode(gpu, "current", mig_mode(gpu, "pending"));
    char value[64];
    if (row_of("standin-settings", gpu, "ecc.mode.pending", value, sizeof value))
        set(gpu, "ecc.mode.current", value);
    return forget("standin-health", gpu, cured, COUNT(cured));
}

static nvmlReturn_t reset_all(unsigned *results)
{
    nvmlReturn_t result = NVML_SUCCESS;
    for (unsigned i = 0; i < taken_count; i++) {
        nvmlReturn_t one = reset_gpu(taken[i]);
        if (results)
            results[i] = one;
        if (one)
            result = NVML_ERROR_UNKNOWN; /* nvidia-smi looks at the results then */
    }
    return result;
}

static nvmlReturn_t slot_group(void **group)
{
    if (!group)
        return NVML_ERROR_INVALID_ARGUMENT;
    *group = taken;
    return NVML_SUCCESS;
}

static nvmlReturn_t slot_companions(void *group, char **names, unsigned *count)
{
    (void)group, (void)names;
    return slot_none(count);
}

static nvmlReturn_t slot_forget(void) { return NVML_SUCCESS; }

static nvmlReturn_t slot_reset(unsigned count, nvmlDevice_t *devices, unsigned *results)
{
    taken_count = 0;
    for (unsigned i = 0; devices && i < count && i < MOST_GPUS; i++)
        if ((taken[taken_count] = as_gpu(devices[i])))
            taken_count++;
    return reset_all(results);
}

static nvmlReturn_t slot_take(void **group, nvmlPciInfo_t *slots, unsigned count)
{
    nvmlDevice_t device;
    if (!group || !slots)
        return NVML_ERROR_INVALID_ARGUMENT;
    taken_count = 0;
    for (unsigned i = 0; i < count && i < MOST_GPUS; i++)
        if (!nvmlDeviceGetHandleByPciBusId_v2(slots[i].busId, &device))
            taken[taken_count++] = as_gpu(device);
    *group = taken;
    return NVML_SUCCESS;
}

static nvmlReturn_t slot_reset_taken(void *request)
{
    struct {
        unsigned version;
        void *group;
        unsigned *results;
    } *asked = request;
    return asked ? reset_all(asked->results) : NVML_ERROR_INVALID_ARGUMENT;
}

/* 108: the limit that is in force, in milliwatts; 251: the persistence mode is set, on 615 */
static nvmlReturn_t slot_enforced(nvmlDevice_t device, unsigned *milliwatts) { return nvmlDeviceGetEnforcedPowerLimit(device, milliwatts); }
static nvmlReturn_t slot_persistence(nvmlDevice_t device, nvmlEnableState_t mode) { return nvmlDeviceSetPersistenceMode(device, mode); }

/* 26: a line of a log */
static nvmlReturn_t slot_log(void) { return NVML_SUCCESS; }

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
#define SLOT_ENTRY(n) (void *)slot_##n,
    static void *functions[] = {ALL(SLOT_ENTRY)};
    (void)id;
    if (!table)
        return NVML_ERROR_INVALID_ARGUMENT;
    functions[0] = (void *)sizeof functions;
    functions[20] = (void *)slot_primary;
    functions[23] = (void *)slot_topology;
    functions[26] = (void *)slot_log;
    functions[65] = (void *)slot_chip;
    functions[81] = (void *)slot_name;
    functions[108] = (void *)slot_enforced;
    functions[251] = (void *)slot_persistence;
    functions[213] = (void *)slot_processes;
    functions[157] = functions[214] = functions[215] = (void *)slot_no_processes;
    functions[168] = (void *)slot_reset;
    functions[182] = (void *)slot_group;
    functions[183] = (void *)slot_companions;
    functions[184] = (void *)slot_forget;
    functions[272] = (void *)slot_take;
    functions[273] = (void *)slot_reset_taken;
    functions[169] = (void *)slot_none;
    functions[270] = (void *)slot_unlisted;
    *table = functions;
    return NVML_SUCCESS;
}

/* Functions of nvml.h that are not above come from a second file, which nvml.py makes of the header: MISSING(name) … */
nvmlReturn_t gpunode_missing(const char *name)
{
    trace(name);
    return NVML_ERROR_NOT_SUPPORTED;
}
