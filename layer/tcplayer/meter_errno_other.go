//go:build !unix

package tcplayer

import (
	"errors"
	"fmt"
	"syscall"
)

// errnoOf returns the number of the error of the system that err comes from, or
// "".
func errnoOf(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return ""
	}
	return fmt.Sprint(uintptr(errno))
}
