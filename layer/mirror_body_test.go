package layer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// HTTP/2 closes a body while it is being read.
func TestTeeBodyClosedDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var got []bool
		body := layer.TeeBody(r, -1, 100, func(_ []byte, ok bool) { got = append(got, ok) })
		ended := make(chan error)
		go func() {
			_, err := io.ReadAll(body)
			ended <- err
		}()
		_, err := w.Write([]byte("hello"))
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, got)
		require.NoError(t, body.Close())
		require.ErrorIs(t, <-ended, io.ErrClosedPipe)
		require.NoError(t, body.Close())
		require.Equal(t, []bool{false}, got)
	})
}

// The first of Read and Close ends the body, once.
func TestTeeBodyEndsOnce(t *testing.T) {
	for range 200 {
		var calls atomic.Int32
		body := layer.TeeBody(io.NopCloser(strings.NewReader("hello")), -1, 100, func(kept []byte, ok bool) {
			calls.Add(1)
			if ok && string(kept) != "hello" || !ok && kept != nil {
				panic("kept " + string(kept))
			}
		})
		var group sync.WaitGroup
		group.Go(func() { _, _ = io.Copy(io.Discard, body) })
		group.Go(func() { _ = body.Close() })
		group.Wait()
		require.EqualValues(t, 1, calls.Load())
	}
}

// The results of a faulty reader are passed unchanged, and no copy is made.
func TestTeeBodyFaultyReader(t *testing.T) {
	odd := errors.New("odd")
	for _, n := range []int{-1, 9} {
		body := layer.TeeBody(oddReader{n, odd}, -1, 100, func(kept []byte, ok bool) { require.False(t, ok) })
		got, err := body.Read(make([]byte, 4))
		require.Equal(t, n, got)
		require.Equal(t, odd, err)
		require.NoError(t, body.Close())
	}
}

type oddReader struct {
	n   int
	err error
}

func (o oddReader) Read([]byte) (int, error) { return o.n, o.err }
func (oddReader) Close() error               { return nil }

// The body of a request that is not copied is not kept.
func TestMirrorWithoutCopyStoresNothing(t *testing.T) {
	mirrorShared(t, func(t *testing.T, _ context.Context) {
		life, cancel := context.WithCancel(t.Context())
		defer cancel()
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		edit := &counting{}
		svc := layer.Mirror(life, to, edit, mirrorPolicy{MaxInFlight: 1})(kitFunc(reads))
		ask(t, svc, withText("sent"))
		synctest.Wait()
		ask(t, svc, withText("no room"))
		require.Equal(t, 1, edit.forks)
		cancel()
		synctest.Wait()
		ask(t, svc, withText("too late"))
		require.Equal(t, 1, edit.forks)
	})
}

type counting struct {
	forking
	forks int
}

func (c *counting) TeeRequest(req *layertest.Request, limit int64, whole func(*layertest.Request, bool)) *layertest.Request {
	c.forks++
	return c.forking.TeeRequest(req, limit, whole)
}
