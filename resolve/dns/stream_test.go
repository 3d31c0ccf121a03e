package dns

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
)

func TestStreamsShareLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		s.put("web", "web.test. 60 A 10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		leaving, leave := context.WithCancel(ctx)
		var all []*watched
		for _, target := range []string{"web.test:80", "WEB.test:80", "web.test:080"} {
			all = append(all, watch(leaving, r, target), watch(ctx, r, target))
		}
		require.ElementsMatch(t, []string{"udp A web.test.", "udp AAAA web.test."}, s.asked())
		for _, w := range all {
			assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take())
		}
		assert.Equal(t, 1, r.flights.Len())

		// The stream that started the lookups ends. They continue for the others.
		leave()
		assert.Equal(t, []string{"end"}, all[0].take())
		s.put("web", "web.test. 60 A 10.0.0.2")
		time.Sleep(67 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.2:80"}, all[1].take())
		assert.Len(t, s.asked(), 2)

		cancel()
		synctest.Wait()
		assert.Zero(t, r.flights.Len())
		time.Sleep(time.Hour)
		assert.Empty(t, s.asked(), "no stream needs a lookup")
	})
}

// Streams that begin and end concurrently leak nothing, and each gets an answer.
func TestStreamsConcurrent(t *testing.T) {
	s := &server{}
	s.put("web", "web.test. 60 A 10.0.0.1")
	r := New(WithServers(s.loopback(t)), patient())
	var streams errgroup.Group
	for range 8 {
		streams.Go(func() error {
			for range 25 {
				u, err := first(t.Context(), r, "web.test:80")
				if err != nil {
					return err
				}
				if len(u.Endpoints) != 1 {
					return errors.New(text(u))
				}
			}
			return nil
		})
	}
	require.NoError(t, streams.Wait())
	assert.Zero(t, r.flights.Len())
	assert.Zero(t, len(s.asked())%2, "two questions a lookup")
}

// A slow consumer gets the latest answer, without an error that is over.
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithAttempts(1), WithIPv4Only())
		s.put("web", "web.test. 1 A 10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for u, err := range r.Resolve(ctx, "web.test:80") {
			require.NoError(t, err)
			got = append(got, text(u))
			u.Endpoints[0].Weight = 7 // it is the consumer's
			if len(got) == 2 {
				break
			}
			s.put("web", "web.test. 1 A 10.0.0.2")
			time.Sleep(6 * time.Second)
			s.fail(always(reply{rcode: dnsmessage.RCodeServerFailure}))
			time.Sleep(6 * time.Second)
			s.fail(nil)
			s.put("web", "web.test. 1 A 10.0.0.3")
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []string{"replace 10.0.0.1:80", "replace 10.0.0.3:80"}, got)
	})
}

func TestLiteralAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		ctx, cancel := context.WithCancel(t.Context())
		for _, target := range []string{"10.0.0.1:80", "[fd00::1]:80"} {
			w := watch(ctx, r, target)
			assert.Equal(t, []string{"replace " + target}, w.take())
			time.Sleep(time.Hour)
			assert.Empty(t, w.take())
		}
		assert.Empty(t, s.asked())
		cancel()
		synctest.Wait()
	})
}
