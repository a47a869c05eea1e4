#define UTS_RELEASE "@release@"
