package httplayer

import "github.com/gotower/gotower/layer"

// Describe returns the state of the Endpoint: address, protocol, connections,
// idle connections and requests in flight. The state of the address is fresh
// (not tried), up, or down with the last error and backoff. With
// [WithMaxConnAge] it has the age of the oldest connection, the number of
// replaced ones, and the error of a successor that cannot be made.
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
