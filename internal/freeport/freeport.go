// Package freeport returns addresses without a listener, for tests.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Addr returns an address "127.0.0.1:port" at which nothing listens. The port is below
// the range of ephemeral ports, because the system may assign a closed ephemeral port
// to another program.
func Addr(t testing.TB) string {
	t.Helper()
	const minPort, maxPort = 10_000, 30_000
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", minPort+rand.IntN(maxPort-minPort)))
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
