package trust

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that rejects the client may close the connection before the client reads the
// reason.
func TestExplainClosedConnection(t *testing.T) {
	for _, tt := range []struct {
		err          error
		asked, shown bool
		says         string
	}{
		{syscall.ECONNRESET, true, true, "after the client certificate. " + adviceTrusted},
		{io.EOF, true, false, "without a client certificate. " + AdviceShow},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, true, false, "without a client certificate. " + AdviceShow},
		{io.ErrUnexpectedEOF, false, true, "it ended the connection: unexpected EOF. " + adviceOther},
		{errors.New("odd"), true, true, "odd. " + adviceOther},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: expired certificate")}, true, true, "it refused: expired certificate. Renew the client certificate"},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, false, false, "it refused: certificate required. " + AdviceShow},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: no application protocol")}, false, false, adviceOther},
	} {
		h := &handshake{shown: tt.shown}
		h.asked.Store(tt.asked)
		require.ErrorContains(t, h.explain(tt.err), tt.says)
		require.ErrorIs(t, h.explain(tt.err), tt.err)
	}
}
