package httplayer

import (
	"time"

	"github.com/gotower/gotower/layer"
)

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
	if e.opts.maxAge > 0 {
		state = e.describeAge(state)
	}
	return layer.Node{Name: "endpoint", State: e.link.describe(state)}
}

func (e *Endpoint) describeAge(s layer.State) layer.State {
	one, any1 := e.h1.age()
	two, any2 := e.h2.age()
	if any1 || any2 {
		s = append(s, layer.Attr{Key: "age", Value: max(one, two).Round(time.Millisecond)})
	}
	s = append(s, layer.Attr{Key: "aged_out", Value: int(e.h1.heirs.agedOut.Load() + e.h2.heirs.agedOut.Load())})
	for _, err := range []error{e.h1.heirs.lastError(), e.h2.heirs.lastError()} {
		if err != nil {
			s = append(s, layer.Attr{Key: "successor_error", Value: err.Error()})
			break
		}
	}
	return s
}
