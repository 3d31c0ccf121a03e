package httplayer

import "github.com/gotower/gotower/layer"

// Describe returns the state of the Endpoint: its address and protocol;
// connections, those of them that are idle, and requests in flight; and what
// is known of the way to the address: fresh (nobody tried), up or, with the
// last error and the back-off, down.
func (e *Endpoint) Describe() layer.Node {
	conns1, idle1, flight1 := e.h1.usage()
	conns2, idle2, flight2 := e.h2.usage()
	state := layer.State{
		{Key: "addr", Value: e.addr},
		{Key: "protocol", Value: e.opts.protocol.String()},
		{Key: "connections", Value: conns1 + conns2},
		{Key: "idle", Value: idle1 + idle2},
		{Key: "in_flight", Value: flight1 + flight2},
	}
	return layer.Node{Name: "endpoint", State: e.link.describe(state)}
}
