package tcplayer

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// An invalid argument panics in the constructor with one sentence.
func TestInvalidArguments(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	meter, fixed := NewMeter(Instruments{}), FixedDst(netip.MustParseAddrPort("192.0.2.1:80"))
	for name, tt := range map[string]struct {
		want string
		call func()
	}{
		"Serve, listener":   {"tcplayer: nil listener", func() { _ = Serve(t.Context(), nil, holding()) }},
		"Serve, service":    {"tcplayer: nil service", func() { _ = Serve(t.Context(), l, nil) }},
		"Forward":           {"tcplayer: nil service", func() { Forward(nil) }},
		"Transparent":       {"tcplayer: nil service", func() { Transparent(fixed, nil, nil) }},
		"Transparent, from": {"tcplayer: nil origin", func() { Transparent(nil, holding(), nil) }},
		"Fixed":             {"tcplayer: invalid fixed destination", func() { FixedDst(netip.AddrPort{}) }},
		"Accepted":          {"tcplayer: nil service", func() { meter.WrapServer(nil) }},
		"Dialled":           {"tcplayer: nil dial function", func() { meter.WrapDial(nil) }},
		"WithDialContext":   {"tcplayer: nil dial function", func() { WithDialContext(nil) }},
		"Failures":          {"tcplayer: nil report function", func() { OnError(nil) }},
		"Failures, service": {"tcplayer: nil service", func() { OnError(func(context.Context, net.Conn, error) {})(nil) }},
		"NewEndpoint":       {"tcplayer: empty address", func() { NewEndpoint(t.Context(), "") }},
	} {
		t.Run(name, func(t *testing.T) { require.PanicsWithValue(t, tt.want, tt.call) })
	}
}

// A dial function that returns nil and an invalid address are errors of Call.
func TestEndpointWithoutConnection(t *testing.T) {
	nothing := func(context.Context, string, string) (net.Conn, error) { return nil, nil }
	_, err := NewEndpoint(t.Context(), "127.0.0.1:1", WithDialContext(nothing)).Call(t.Context(), Request{})
	require.ErrorContains(t, err, "the dial function returned neither a connection nor an error")
	_, err = (&Dialer{Dial: nothing}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
	require.ErrorContains(t, err, "the dial function returned neither a connection nor an error")
	_, err = NewEndpoint(t.Context(), "web").Call(t.Context(), Request{})
	require.ErrorContains(t, err, "missing port in address")
}
