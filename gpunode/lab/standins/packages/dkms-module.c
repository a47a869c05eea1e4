/* gpunode lab stand-in: what modinfo reads, in the section it reads it from. */
#include <generated/utsrelease.h>
__attribute__((section(".modinfo"), used)) static const char info[] =
#ifdef DRIVES_GPUS
    "alias=pci:v000010DEd*sv*sd*bc03sc02i00*\0"
    "alias=pci:v000010DEd*sv*sd*bc03sc00i00*\0"
#endif
    "version=" VERSION "\0"
    "license=" LICENSE "\0"
    "description=gpunode lab stand-in\0"
    "depends=" DEPENDS "\0"
    SOFTDEP
    "name=" NAME "\0"
    "vermagic=" UTS_RELEASE " SMP preempt mod_unload modversions ";
