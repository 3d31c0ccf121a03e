//go:build unix

package tcplayer

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// errnoOf returns the name of the error of the system that err comes from, or "".
func errnoOf(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return ""
	}
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return unknownErrno
}

// unknownErrno is how linkerd's proxy calls what has no name.
const unknownErrno = "UNKNOWN_ERRNO"
