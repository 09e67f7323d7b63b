// Mounts a FUSE file system without serving it, and runs a command that serves it, as container runtimes and
// mount.fuse3 do: premount DIRECTORY OPTIONS COMMAND [ARGUMENT...]. Each argument @ becomes /dev/fd/N. The command
// replaces this process, so it has the only copy of the descriptor.
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4)
        errx(2, "usage");
    // Runtimes that are written in Go open files in this mode.
    int fd = open("/dev/fuse", O_RDWR | O_NONBLOCK);
    if (fd < 0)
        err(3, "/dev/fuse");
    char *options, *path;
    if (asprintf(&options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d,%s", fd, getuid(), getgid(), argv[2]) < 0 ||
        asprintf(&path, "/dev/fd/%d", fd) < 0)
        err(3, "memory");
    if (mount("premounted", argv[1], "fuse.weightfs", MS_RDONLY | MS_NOSUID | MS_NODEV, options) != 0)
        err(3, "mount %s", argv[1]);
    for (char **word = argv + 3; *word; word++)
        if (strcmp(*word, "@") == 0)
            *word = path;
    execvp(argv[3], argv + 3);
    err(3, "%s", argv[3]);
}
