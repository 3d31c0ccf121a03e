//go:build !linux

package tcplayer

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

func setUserTimeout(*net.TCPConn, time.Duration) error {
	return fmt.Errorf("a user timeout on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
