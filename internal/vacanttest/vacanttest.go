// Package vacanttest finds addresses for tests at which nothing listens.
package vacanttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Addr is an address of this machine, "127.0.0.1:port", at which nothing listens.
// The port is below those that are given to whoever takes any, so that it stays
// vacant until somebody takes it by its number. A port that a listener was given
// and let go would be given to another before long.
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
	t.Fatal("no port is free")
	return ""
}
