//go:build linux && (amd64 || arm64) && !race && !portable

package rawio

import (
	"syscall"
	"unsafe" //nolint:depguard // a raw system call has the address of its buffer
)

// Read reads once from the socket fd, without blocking.
func Read(fd uintptr, p []byte) (int, error) { return call(syscall.SYS_RECVFROM, fd, p, 0) }

// Write writes once to the socket fd, without blocking.
func Write(fd uintptr, p []byte) (int, error) {
	return call(syscall.SYS_SENDTO, fd, p, syscall.MSG_NOSIGNAL)
}

// Peek reads once from the socket fd, without blocking and without removing the bytes.
func Peek(fd uintptr, p []byte) (int, error) {
	return call(syscall.SYS_RECVFROM, fd, p, syscall.MSG_PEEK)
}

// call makes a system call that does not block, also on a blocking socket. It repeats the call while
// a signal interrupts it.
func call(trap, fd uintptr, p []byte, flags uintptr) (int, error) {
	for {
		n, _, err := syscall.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), //nolint:gosec // see the import
			uintptr(len(p)), flags|syscall.MSG_DONTWAIT, 0, 0)
		switch err {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, err
		}
	}
}
