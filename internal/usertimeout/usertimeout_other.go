//go:build !linux

package usertimeout

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

// Set returns an error that matches [errors.ErrUnsupported].
func Set(*net.TCPConn, time.Duration) error {
	return fmt.Errorf("TCP_USER_TIMEOUT on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
