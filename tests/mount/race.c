// Exchanges two names. Any user who can write to their directory may do this.
//
// As a program: exchanges the names A and B again and again.
//
// For LD_PRELOAD: RACE="A B FIRST SECOND" exchanges A and B before the calls number FIRST and SECOND, from 1 on, of the
// functions below that get a path with A or with the suffix of temporary names in it, or that sync a file. If A is "*",
// it is the last temporary directory that was made, and all calls after that count. RACE_LOG is the file to which the
// number of calls is appended.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MARK ".weightfs-tmp"

static char a[4096], b[4096], made[4096];
static int first, second, calls;

static int exchange(const char *from, const char *to) {
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 2);
}

__attribute__((constructor)) static void start(void) {
    char *race = getenv("RACE");
    if (race && sscanf(race, "%4095s %4095s %d %d", a, b, &first, &second) != 4) abort();
}

__attribute__((destructor)) static void end(void) {
    char *path = getenv("RACE_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%d\n", calls);
        fclose(log);
    }
}

static void count(const char *path) {
    if (!a[0] || (path && !made[0] && !strstr(path, a) && !strstr(path, MARK))) return;
    int call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    const char *from = strcmp(a, "*") ? a : made;
    if ((call == first || call == second) && from[0]) exchange(from, b);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void note(const char *path) {
    const char *name = strrchr(path, '/');
    if (!strcmp(a, "*") && strstr(path, MARK)) snprintf(made, sizeof made, "%s", name ? name + 1 : path);
}

#define OPEN(name, parameters, ...)                                                                                    \
    int name parameters {                                                                                              \
        REAL(name);                                                                                                    \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;                                        \
        va_end(list);                                                                                                  \
        count(path);                                                                                                   \
        return real(__VA_ARGS__, mode);                                                                                \
    }

OPEN(open, (const char *path, int flags, ...), path, flags)
OPEN(open64, (const char *path, int flags, ...), path, flags)
OPEN(openat, (int dir, const char *path, int flags, ...), dir, path, flags)
OPEN(openat64, (int dir, const char *path, int flags, ...), dir, path, flags)

#define WRAP(type, name, parameters, ...)                                                                              \
    type name parameters {                                                                                             \
        REAL(name);                                                                                                    \
        count(path);                                                                                                   \
        return real(__VA_ARGS__);                                                                                      \
    }

WRAP(int, statx, (int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict to), dir, path,
     flags, mask, to)
WRAP(int, fstatat, (int dir, const char *restrict path, struct stat *restrict to, int flags), dir, path, to, flags)
WRAP(int, fstatat64, (int dir, const char *restrict path, struct stat64 *restrict to, int flags), dir, path, to, flags)
WRAP(int, stat64, (const char *restrict path, struct stat64 *restrict to), path, to)
WRAP(int, lstat64, (const char *restrict path, struct stat64 *restrict to), path, to)
WRAP(char *, realpath, (const char *restrict path, char *restrict to), path, to)
WRAP(ssize_t, readlink, (const char *restrict path, char *restrict to, size_t len), path, to, len)
WRAP(ssize_t, readlinkat, (int dir, const char *restrict path, char *restrict to, size_t len), dir, path, to, len)
WRAP(int, access, (const char *path, int mode), path, mode)
WRAP(int, eaccess, (const char *path, int mode), path, mode)
WRAP(int, faccessat, (int dir, const char *path, int mode, int flags), dir, path, mode, flags)
WRAP(int, unlink, (const char *path), path)
WRAP(int, unlinkat, (int dir, const char *path, int flags), dir, path, flags)
WRAP(int, rmdir, (const char *path), path)
WRAP(int, rename, (const char *from, const char *path), from, path)
WRAP(int, renameat, (int dir, const char *from, int other, const char *path), dir, from, other, path)
WRAP(int, renameat2, (int dir, const char *from, int other, const char *path, unsigned flags), dir, from, other, path,
     flags)
WRAP(int, linkat, (int dir, const char *from, int other, const char *path, int flags), dir, from, other, path, flags)

int mkdir(const char *path, mode_t mode) {
    count(path);
    int result = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    note(path);
    return result;
}

int mkdirat(int dir, const char *path, mode_t mode) {
    count(path);
    int result = syscall(SYS_mkdirat, dir, path, mode);
    note(path);
    return result;
}

int fsync(int fd) {
    count(NULL);
    return syscall(SYS_fsync, fd);
}

int main(int argc, char **argv) {
    while (argc == 3) exchange(argv[1], argv[2]);
    return 1;
}
