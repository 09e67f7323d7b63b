// For LD_PRELOAD: fsync(2) as on a slow disk.

#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd) {
    usleep(300000);
    return syscall(SYS_fsync, fd);
}
