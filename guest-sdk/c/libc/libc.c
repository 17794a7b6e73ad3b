// The few functions of a C library that are needed, so that the component imports nothing from outside the contract.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern unsigned char __heap_base; // where the linker says that memory is free
static uintptr_t top;

// An instance serves one message and is thrown away: memory is only ever taken.
void *malloc(size_t size) {
  if (top == 0) top = (uintptr_t)&__heap_base;
  uintptr_t header = (top + 15) & ~(uintptr_t)15, start = header + 16;
  size_t have = __builtin_wasm_memory_size(0) << 16;
  uintptr_t end = start + size;
  if (end < start) __builtin_trap();
  // Beyond `limits.memory` it does not grow.
  if (end > have && __builtin_wasm_memory_grow(0, (end - have + 0xffff) >> 16) == (size_t)-1) __builtin_trap();
  *(size_t *)header = size;
  top = end;
  return (void *)start;
}

void free(void *old) { (void)old; }

void *realloc(void *old, size_t size) {
  void *new = malloc(size);
  if (old != NULL) {
    size_t had = *(size_t *)((uintptr_t)old - 16);
    memcpy(new, old, had < size ? had : size);
  }
  return new;
}

void *memcpy(void *to, const void *from, size_t count) {
  unsigned char *t = to;
  const unsigned char *f = from;
  while (count-- > 0) *t++ = *f++;
  return to;
}

void *memset(void *to, int byte, size_t count) {
  unsigned char *t = to;
  while (count-- > 0) *t++ = (unsigned char)byte;
  return to;
}

int memcmp(const void *a, const void *b, size_t count) {
  const unsigned char *x = a, *y = b;
  for (; count > 0; count--, x++, y++) {
    if (*x != *y) return *x - *y;
  }
  return 0;
}

size_t strlen(const char *string) {
  size_t length = 0;
  while (string[length] != '\0') length++;
  return length;
}
