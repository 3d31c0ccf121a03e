//go:build unix && !portable && (race || !linux || (!amd64 && !arm64))

package rawio

import "syscall"

// Read reads once from the socket fd.
func Read(fd uintptr, p []byte) (int, error) { return retry(syscall.Read, fd, p) }

// Write writes once to the socket fd.
func Write(fd uintptr, p []byte) (int, error) { return retry(syscall.Write, fd, p) }

// Peek reads once from the socket fd without removing the bytes.
func Peek(fd uintptr, p []byte) (int, error) {
	return retry(func(fd int, p []byte) (int, error) {
		n, _, err := syscall.Recvfrom(fd, p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	}, fd, p)
}

// retry makes a system call, and repeats it while a signal interrupts it.
func retry(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		n, err = call(int(fd), p)
		if err != syscall.EINTR { //nolint:errorlint // an error number
			return max(n, 0), err
		}
	}
}
