//go:build !unix

package h1

// Stale reports whether the connection was closed by this side. On this system
// the end of the server is found by the next request only.
func (c *ClientConn) Stale() bool { return c.cause.Load() != nil }
