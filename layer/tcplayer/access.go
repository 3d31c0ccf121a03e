package tcplayer

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/netip"
	"sync"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Accessor is what layers that look at requests see of connections: who asks, as
// Source, and at which address, as Authority. There is nothing else to see, so
// that of the conditions on requests only those hold that hold for anything. A
// connection that was made has status 0 and ends as [UntilClosed] says.
type Accessor struct{}

var _ layer.Accessor[Request, net.Conn] = Accessor{}

// Method returns "".
func (Accessor) Method(Request) string { return "" }

// Scheme returns "".
func (Accessor) Scheme(Request) string { return "" }

// Authority returns the address that the client asked for, or "" if that is
// not known.
func (Accessor) Authority(r Request) string {
	if !r.Server.IsValid() {
		return ""
	}
	return r.Server.String()
}

// Path returns "".
func (Accessor) Path(Request) string { return "" }

// Query returns "".
func (Accessor) Query(Request) string { return "" }

// Source returns the address of the client.
func (Accessor) Source(r Request) netip.AddrPort { return r.Client }

// RequestHeader has no fields.
func (Accessor) RequestHeader(Request) layer.Header { return noFields{} }

// Status returns 0.
func (Accessor) Status(net.Conn) int { return 0 }

// ResponseHeader has no fields.
func (Accessor) ResponseHeader(net.Conn) layer.Header { return noFields{} }

// ResponseTrailer has no fields.
func (Accessor) ResponseTrailer(net.Conn) layer.Header { return noFields{} }

// Complete is [UntilClosed].
func (Accessor) Complete(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	return UntilClosed(ctx, conn, o)
}

type noFields struct{}

func (noFields) Get(string) string              { return "" }
func (noFields) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }

// choice is several servers, of which each connection goes to one that is not
// known before.
type choice struct{ servers []Server }

// newChoice leaves out what is nil.
func newChoice(servers ...Server) choice {
	var c choice
	for _, svc := range servers {
		if svc != nil {
			c.servers = append(c.servers, svc)
		}
	}
	return c
}

// Ready waits until one of the servers is ready.
func (c choice) Ready(ctx context.Context) error {
	switch len(c.servers) {
	case 0:
		return nil
	case 1:
		return c.servers[0].Ready(ctx)
	}
	for _, svc := range c.servers {
		if layer.Poll(svc) == nil {
			return nil
		}
	}
	return c.wait(ctx)
}

// wait asks all, each in a goroutine, and leaves none behind.
func (c choice) wait(ctx context.Context) error {
	asking, met := context.WithCancel(ctx)
	answers := make([]error, len(c.servers))
	var asked sync.WaitGroup
	for i, svc := range c.servers {
		asked.Go(func() {
			if answers[i] = ready(asking, svc); answers[i] == nil {
				met()
			}
		})
	}
	asked.Wait()
	met()
	closed := errors.Join(answers...)
	for _, err := range answers {
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, layer.ErrClosed):
			closed = err
		}
	}
	return closed
}

// ready asks svc. A panic is its answer.
func ready(ctx context.Context, svc Server) (err error) {
	defer panics.Recover(&err)
	return svc.Ready(ctx)
}

// describe shows servers under their names; one that is nil is left out.
func (c choice) describe(name string, names []string, servers ...Server) layer.Node {
	n := layer.Node{Name: name}
	for i, svc := range servers {
		if svc != nil {
			n.Children = append(n.Children, layer.Node{Name: names[i], Children: []layer.Node{layer.Describe(svc)}})
		}
	}
	return n
}
