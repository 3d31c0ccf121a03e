// Package freeport finds addresses for tests at which nothing listens.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Addr returns an address of this machine, "127.0.0.1:port", without a listener.
// The port is below the range of ephemeral ports, because the system may give a
// closed ephemeral port to another program.
func Addr(t testing.TB) string {
	t.Helper()
	const least, most = 10_000, 30_000
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", least+rand.IntN(most-least)))
		if err == nil {
			if err = l.Close(); err != nil {
				t.Fatal(err)
			}
			return l.Addr().String()
		}
	}
	t.Fatal("no free port between 10000 and 30000")
	return ""
}
