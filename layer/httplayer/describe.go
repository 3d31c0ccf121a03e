package httplayer

import "github.com/gotower/gotower/layer"

// Describe shows the state of the Endpoint: the address, the protocol, the connections, the
// idle connections and the requests in flight. It also shows whether the address is fresh
// (not tried), up or down. If it is down, it shows the last error, the number of failures
// and the time until the next attempt.
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
