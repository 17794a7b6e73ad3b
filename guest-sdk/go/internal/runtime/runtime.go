// Package runtime gives the bindings memory: the part of `go.bytecodealliance.org/pkg/wit/runtime` that this contract needs, so that nothing
// has to be downloaded.
package runtime

import (
	"runtime"
	"unsafe"
)

// What the host has allocated for the call that is going on.
var pinner runtime.Pinner

// Allocate returns zeroed memory, aligned to 8, that stays where it is until `pinner` is unpinned; nil if `size` is 0.
func Allocate(pinner *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	if size == 0 {
		// Never a small number: Go's runtime stops where it finds one that is meant as a pointer.
		return nil
	}
	memory := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	pinner.Pin(memory)
	return memory
}

// Unpin lets go of what the host has allocated: Go's own pointers keep it from here on.
func Unpin() { pinner.Unpin() }

//go:wasmexport cabi_realloc
func realloc(old unsafe.Pointer, oldSize, align, newSize uintptr) unsafe.Pointer {
	memory := Allocate(&pinner, newSize, align)
	if oldSize > 0 {
		copy(unsafe.Slice((*byte)(memory), newSize), unsafe.Slice((*byte)(old), oldSize))
	}
	return memory
}

// Handle names something that the host holds, until it is taken.
type Handle struct{ value int32 }

func MakeHandle(value int32) *Handle { return &Handle{value} }

// Use returns the number.
func (handle *Handle) Use() int32 {
	if handle.value == 0 {
		panic("what the handle named is gone")
	}
	return handle.value
}

// Take returns the number, and forgets it.
func (handle *Handle) Take() int32 {
	value := handle.Use()
	handle.value = 0
	return value
}

// TakeOrNil returns the number, or 0 if it was taken.
func (handle *Handle) TakeOrNil() int32 {
	value := handle.value
	handle.value = 0
	return value
}

// Set gives a number to a handle that has none.
func (handle *Handle) Set(value int32) { handle.value = value }
