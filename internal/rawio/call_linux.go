//go:build linux && !race

package rawio

import (
	"syscall"
	"unsafe" //nolint:depguard // a raw system call has the address of its buffer
)

// Read reads once from the non-blocking socket fd.
func Read(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_READ, fd, p, 0) }

// Write writes once to the non-blocking socket fd.
func Write(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_WRITE, fd, p, 0) }

// Peek reads once from the socket fd without removing the bytes.
func Peek(fd uintptr, p []byte) (int, error) {
	return call(syscall.SYS_RECVFROM, fd, p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
}

// call makes a system call, and repeats it while a signal interrupts it.
func call(trap, fd uintptr, p []byte, flags uintptr) (int, error) {
	for {
		n, _, err := syscall.RawSyscall6(trap, fd,
			uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0) //nolint:gosec // see the import
		switch err {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, err
		}
	}
}
