package identity

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// modelCA is a CA, and what must come of its answers.
type modelCA struct {
	grpc.ClientConnInterface

	mu   sync.Mutex // a timer of the bubble orders nothing for the race detector
	a    *authority
	c    Config
	mode string
	life time.Duration

	asked int // truly
	made  map[string]*pb.CertifyResponse

	want      int       // asked, by the model
	next      time.Time // when it is asked next
	failures  int
	certified bool
	expires   time.Time
}

func (m *modelCA) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	req := args.(*pb.CertifyRequest)
	switch m.mode {
	case "fails":
		return errors.New("as asked")
	case "hangs":
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		return ctx.Err()
	case "lies":
		req = &pb.CertifyRequest{Identity: other, CertificateSigningRequest: req.GetCertificateSigningRequest()}
	}
	if m.made[m.mode] == nil { // signing is slow
		m.made[m.mode] = m.a.answer(req, 365*24*time.Hour)
	}
	rsp := m.made[m.mode]
	rsp.ValidUntil = timestamppb.New(time.Now().Add(m.life))
	proto.Merge(reply.(*pb.CertifyResponse), rsp)
	return nil
}

// until lets the model come to now. The mode has not changed since it last did.
func (m *modelCA) until(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.next.After(now) {
		m.want++
		if m.mode == "works" {
			m.certified, m.failures, m.expires = true, 0, m.next.Add(m.life)
			m.next = m.next.Add(min(max(m.life/10*7, m.c.MinRefresh), m.c.MaxRefresh))
			continue
		}
		if m.mode == "hangs" {
			m.next = m.next.Add(m.c.Timeout)
		}
		m.next = m.next.Add(min(m.c.Backoff.Min<<m.failures, m.c.Backoff.Max))
		m.failures = min(m.failures+1, 20)
	}
}

// For any behavior of the CA, it is called at the right times, and a certificate is
// presented while it is valid.
func TestCertifyModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		rapid.Check(struct{ rapid.TB }{t}, func(r *rapid.T) { // a bubble has no Deadline to ask for
			m := &modelCA{a: a, c: a.config(web), mode: "works", life: time.Hour, next: time.Now(), made: make(map[string]*pb.CertifyResponse)}
			m.c.MinRefresh, m.c.MaxRefresh, m.c.Timeout = 10*time.Second, 2*time.Hour, 7*time.Second
			m.c.Backoff = layer.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second}
			i, err := New(m.c)
			require.NoError(t, err)
			m.set(r)
			defer certifying(t, i, m)()
			synctest.Wait()
			gone := looks(t)
			r.Repeat(map[string]func(*rapid.T){
				"time": func(r *rapid.T) {
					time.Sleep(time.Duration(rapid.Int64Range(1, int64(20*time.Minute)).Draw(r, "d")))
					synctest.Wait()
				},
				"moment": func(r *rapid.T) {
					time.Sleep(time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(r, "d")))
					synctest.Wait()
				},
				"change": func(r *rapid.T) {
					m.until(time.Now())
					m.set(r)
				},
				"": func(r *rapid.T) {
					m.until(time.Now())
					m.mu.Lock()
					asked := m.asked
					m.mu.Unlock()
					if asked != m.want {
						r.Fatalf("asked %d times, not %d", asked, m.want)
					}
					if _, err := i.handshakeCertificate(); (err == nil) != (m.certified && !time.Now().After(m.expires)) {
						r.Fatalf("%v, but it expires at %v and now is %v", err, m.expires, time.Now())
					}
					if (i.Ready(gone) == nil) != m.certified {
						r.Fatalf("ready: %v", i.Ready(gone))
					}
				},
			})
		})
	})
}

func (m *modelCA) set(r *rapid.T) {
	mode := rapid.SampledFrom([]string{"works", "works", "fails", "lies", "hangs"}).Draw(r, "mode")
	life := time.Duration(rapid.Int64Range(int64(time.Second), int64(4*time.Hour)).Draw(r, "life"))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mode, m.life = mode, life
}
