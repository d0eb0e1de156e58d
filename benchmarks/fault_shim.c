/* Fault injection for file operations below one folder, loaded with LD_PRELOAD.
 *
 * fault_arm(folder, call, action) starts counting; fault_disarm() stops. Calls are counted from 1.
 * Actions: 0 count, 1 die before, 2 die after, 3 torn write, 4 ENOSPC once, 5 ENOSPC from there on, 6 EIO once,
 * 7 EIO from there on. fault_kinds() returns one letter per counted call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, DIE_BEFORE, DIE_AFTER, TORN, ENOSPC_ONCE, ENOSPC_ON, EIO_ONCE, EIO_ON };
static char prefix[PATH_MAX], kinds[1 << 16];
static long chosen, calls;
static int action, armed;

void fault_arm(const char *folder, long call, int what) {
  snprintf(prefix, sizeof prefix, "%s", folder);
  memset(kinds, 0, sizeof kinds);
  chosen = call, action = what, calls = 0, armed = 1;
}
void fault_disarm(void) { armed = 0; }
long fault_calls(void) { return calls; }
const char *fault_kinds(void) { return kinds; }

static int below(const char *path) { return !strncmp(path, prefix, strlen(prefix)); }
static int handle_below(int handle) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

/* 0: do it; 1: do it, then die; 2: write half of it, then die; -1: fail with errno. */
static int decide(char kind) {
  long call = ++calls;
  if (call < (long)sizeof kinds) kinds[call - 1] = kind;
  int later = (action == ENOSPC_ON || action == EIO_ON) && call > chosen;
  if (action == COUNT || (call != chosen && !later)) return 0;
  switch (action) {
  case DIE_BEFORE: _exit(77);
  case DIE_AFTER: return 1;
  case TORN: if (kind == 'w') return 2; _exit(77);
  case ENOSPC_ONCE: case ENOSPC_ON:
    if (kind == 'u') return 0; /* a full disk does not prevent deletion */
    errno = ENOSPC; return -1;
  default: errno = EIO; return -1;
  }
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAULT(kind, test, type, call) \
  if (!armed || !(test)) return call; \
  int what = decide(kind); \
  if (what < 0) return (type)-1; \
  type result = call; \
  if (what) _exit(77); \
  return result;
#define WRITE(test, full, half) \
  if (!armed || !(test)) return full; \
  int what = decide('w'); \
  if (what < 0) return -1; \
  ssize_t result = what == 2 ? half : full; \
  if (what) _exit(77); \
  return result;

ssize_t write(int h, const void *b, size_t n) {
  REAL(write); WRITE(handle_below(h), real(h, b, n), real(h, b, n / 2)) }
ssize_t pwrite(int h, const void *b, size_t n, off_t o) {
  REAL(pwrite); WRITE(handle_below(h), real(h, b, n, o), real(h, b, n / 2, o)) }
ssize_t pwrite64(int h, const void *b, size_t n, off64_t o) {
  REAL(pwrite64); WRITE(handle_below(h), real(h, b, n, o), real(h, b, n / 2, o)) }
ssize_t sendfile64(int to, int from, off64_t *o, size_t n);
ssize_t sendfile(int to, int from, off_t *o, size_t n) {
  REAL(sendfile); WRITE(n && handle_below(to), real(to, from, o, n), real(to, from, o, n / 2)) }
ssize_t sendfile64(int to, int from, off64_t *o, size_t n) {
  REAL(sendfile64); WRITE(n && handle_below(to), real(to, from, o, n), real(to, from, o, n / 2)) }
int fsync(int h) { REAL(fsync); FAULT('s', handle_below(h), int, real(h)) }
int fdatasync(int h) { REAL(fdatasync); FAULT('s', handle_below(h), int, real(h)) }
int ftruncate(int h, off_t n) { REAL(ftruncate); FAULT('t', handle_below(h), int, real(h, n)) }
int ftruncate64(int h, off64_t n) { REAL(ftruncate64); FAULT('t', handle_below(h), int, real(h, n)) }
int unlink(const char *p) { REAL(unlink); FAULT('u', below(p), int, real(p)) }
int unlinkat(int d, const char *p, int f) { REAL(unlinkat); FAULT('u', below(p), int, real(d, p, f)) }
int rename(const char *a, const char *b) { REAL(rename); FAULT('r', below(b), int, real(a, b)) }
int renameat(int d, const char *a, int e, const char *b) {
  REAL(renameat); FAULT('r', below(b), int, real(d, a, e, b)) }
int mkdir(const char *p, mode_t m) { REAL(mkdir); FAULT('m', below(p), int, real(p, m)) }

#define CREATES(flags) ((flags) & (O_CREAT | O_TRUNC))
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { \
  va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *p, int flags, ...) {
  REAL(open); MODE FAULT('o', CREATES(flags) && below(p), int, real(p, flags, mode)) }
int open64(const char *p, int flags, ...) {
  REAL(open64); MODE FAULT('o', CREATES(flags) && below(p), int, real(p, flags, mode)) }
int openat(int d, const char *p, int flags, ...) {
  REAL(openat); MODE FAULT('o', CREATES(flags) && below(p), int, real(d, p, flags, mode)) }
