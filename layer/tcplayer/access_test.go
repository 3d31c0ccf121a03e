package tcplayer_test

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// A connection has the address of its client and its destination only.
func TestAccessor(t *testing.T) {
	var a tcplayer.Bytes
	client, server := netip.MustParseAddrPort("10.0.0.1:1234"), netip.MustParseAddrPort("[fd00::1]:80")
	req := tcplayer.Request{Client: client, Server: server}
	assert.Equal(t, client, a.Source(req))
	assert.Equal(t, "[fd00::1]:80", a.Authority(req))
	assert.Empty(t, a.Authority(tcplayer.Request{}))
	assert.Equal(t, []string{"", "", "", ""}, []string{a.Method(req), a.Scheme(req), a.Path(req), a.Query(req)})
	assert.Zero(t, a.Status(nil))
	for _, f := range []layer.Header{a.RequestHeader(req), a.ResponseHeader(nil), a.ResponseTrailer(nil)} {
		assert.Empty(t, f.Get("content-type"))
		for name := range f.All() {
			t.Fatal(name)
		}
	}
}

type ends struct{ with []error }

func (*ends) Data(int)        {}
func (e *ends) End(err error) { e.with = append(e.with, err) }

// A connection counts until it is closed.
func TestAccessorCompletesAtClose(t *testing.T) {
	near, far := net.Pipe()
	var e ends
	conn := tcplayer.Bytes{}.Complete(t.Context(), near, &e)
	require.NoError(t, far.Close())
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Empty(t, e.with)
	require.NoError(t, conn.Close())
	assert.Equal(t, []error{nil}, e.with)
}
