package identity

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// setClock is a wall clock that the bubble's own clock does not know of.
type setClock struct{ ahead atomic.Int64 }

func (c *setClock) now() time.Time { return time.Now().Round(0).Add(time.Duration(c.ahead.Load())) }

func (c *setClock) set(by time.Duration) { c.ahead.Add(int64(by)) }

// A machine that was suspended, or whose clock was set forward, has a certificate
// that expires sooner than any timer knows of. One set back keeps to its timers.
func TestCertifyGoesByTheClockThatIsFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		ahead, due time.Duration // after an hour, of 24 h of which 16 h 48 min are waited
		renewIn    string
	}{
		"past the expiry":  {25 * time.Hour, time.Minute, "renew_in=0s"},
		"past the renewal": {16 * time.Hour, time.Minute, "renew_in=0s"},
		"before both":      {10 * time.Hour, 5*time.Hour + 48*time.Minute, "renew_in=5h48m0s"},
		"back":             {-100 * time.Hour, 15*time.Hour + 48*time.Minute, "renew_in=15h48m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAuthority(t)
				var asked atomic.Int64
				conn, stop := serveCA(t, func(_ context.Context, req *pb.CertifyRequest) (*pb.CertifyResponse, error) {
					asked.Add(1)
					return a.answer(req, 24*time.Hour), nil
				})
				defer stop()
				i, err := New(a.config(web))
				require.NoError(t, err)
				var clock setClock
				i.wall = clock.now
				defer certifying(t, i, conn)()
				pause(time.Hour)
				require.EqualValues(t, 1, asked.Load())
				assert.Contains(t, i.Describe().String(), "renew_in=15h48m0s")
				clock.set(tt.ahead)
				assert.Contains(t, i.Describe().String(), tt.renewIn)
				pause(tt.due - time.Minute - time.Second)
				assert.EqualValues(t, 1, asked.Load())
				pause(time.Minute + 2*time.Second)
				assert.EqualValues(t, 2, asked.Load())
				assert.Contains(t, i.Describe().String(), "renew_in=16h4", "and it goes on as before")
				pause(16 * time.Hour)
				assert.EqualValues(t, 2, asked.Load())
				pause(time.Hour)
				assert.EqualValues(t, 3, asked.Load())
			})
		})
	}
}

// A back-off is over by either clock, too.
func TestBackoffGoesByTheClockThatIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		var asked atomic.Int64
		conn, stop := serveCA(t, func(context.Context, *pb.CertifyRequest) (*pb.CertifyResponse, error) {
			asked.Add(1)
			return nil, errors.New("not today")
		})
		defer stop()
		c := a.config(web)
		c.Backoff = layer.Backoff{Min: time.Hour, Max: time.Hour}
		i, err := New(c)
		require.NoError(t, err)
		var clock setClock
		i.wall = clock.now
		defer certifying(t, i, conn)()
		pause(time.Minute)
		require.EqualValues(t, 1, asked.Load())
		clock.set(time.Hour)
		pause(time.Minute)
		assert.EqualValues(t, 2, asked.Load())
		pause(time.Hour - time.Minute)
		assert.EqualValues(t, 2, asked.Load())
		pause(2 * time.Minute)
		assert.EqualValues(t, 3, asked.Load())
	})
}
