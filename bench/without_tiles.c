// Preloaded into a program, refuses the tiles of AMX to it, as a processor without them does:
//   cc -shared -fPIC -O2 -o without_tiles.so without_tiles.c
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  const long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  if (number == SYS_arch_prctl && a[0] == request_permission) {
    errno = EINVAL;
    return -1;
  }
  register long fourth __asm__("r10") = a[3];
  register long fifth __asm__("r8") = a[4];
  register long sixth __asm__("r9") = a[5];
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(fourth), "r"(fifth), "r"(sixth)
                   : "rcx", "r11", "memory");
  if (result < 0 && result >= -4095) {
    errno = (int)-result;
    return -1;
  }
  return result;
}
