package layer_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// The error names the limit also if the body is a connection, with CloseWrite and
// without.
func TestTimeoutConnection(t *testing.T) {
	for name, body := range map[string]func(net.Conn) net.Conn{
		"whole":     func(c net.Conn) net.Conn { return c },
		"by halves": func(c net.Conn) net.Conn { return halfClosed{c, new(bool)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				svc := layer.Timeout[int, *response](time.Second)(
					layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
						context.AfterFunc(ctx, func() { near.Close() })
						return &response{Body: body(near)}, nil
					}))
				rsp, err := svc.Call(t.Context(), 1)
				require.NoError(t, err)
				_, err = rsp.Body.Read(make([]byte, 1))
				require.ErrorIs(t, err, layer.ErrTimeout)
				require.NoError(t, rsp.Body.Close())
			})
		})
	}
}
