package linkerd

import (
	"context"
	"iter"
	"math"
	"net/netip"
	"sync"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// From the controller over a real connection to where requests go: the rows of
// linkerd's profile_dst_overrides.rs, and what a route's labels become.

// get is a protocol. Its requests are paths of a GET, and its responses are
// the authority that served it.
type get struct{}

type served struct {
	by    string
	route *layer.Route
}

func (get) Method(string) string                { return "GET" }
func (get) Scheme(string) string                { return "http" }
func (get) Authority(string) string             { return apex }
func (get) Path(p string) string                { return p }
func (get) Query(string) string                 { return "" }
func (get) Source(string) netip.AddrPort        { return netip.AddrPort{} }
func (get) RequestHeader(string) layer.Header   { return none{} }
func (get) Status(served) int                   { return 200 }
func (get) ResponseHeader(served) layer.Header  { return none{} }
func (get) ResponseTrailer(served) layer.Header { return none{} }
func (get) Complete(ctx context.Context, s served, o layer.Observer) served {
	return layer.AtReturn(ctx, s, o)
}

type none struct{}

func (none) Get(string) string              { return "" }
func (none) Values(string) []string         { return nil }
func (none) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }

const apex = "web.default.svc.cluster.local:80"

// taken reports when the Router has applied an item of the source.
type taken struct {
	profiles.Source
	items chan error
}

func (s taken) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		for p, err := range s.Source.Watch(ctx, target) {
			more := yield(p, err)
			select {
			case s.items <- err:
			case <-ctx.Done():
				return
			}
			if !more {
				return
			}
		}
	}
}

// mesh is a controller and a Router that listens to it.
type mesh struct {
	*controller
	t      *testing.T
	router *profiles.Router[string, served]
	taken  chan error
	stream *profileStream
	made   map[string]int
}

func newMesh(t *testing.T) *mesh {
	m := &mesh{controller: newController(), t: t, taken: make(chan error), made: make(map[string]int)}
	addr, _ := m.serve(t, "")
	source := taken{New(dial(t, addr), WithBackoff(layer.Backoff{Min: 1, Max: 1})), m.taken}
	m.router = profiles.New(t.Context(), profiles.Config{Target: apex, Source: source}, get{},
		func(authority string) layer.Service[string, served] {
			m.made[authority]++
			return layer.Func[string, served](func(ctx context.Context, _ string) (served, error) {
				return served{authority, layer.RouteFromContext(ctx)}, nil
			})
		})
	m.stream = <-m.streams
	return m
}

// setProfile makes the controller send a profile, and waits until it is current.
func (m *mesh) setProfile(p *destination.DestinationProfile) {
	m.t.Helper()
	m.stream.messages <- p
	require.NoError(m.t, <-m.taken)
}

func overrides(targets ...*destination.WeightedDst) *destination.DestinationProfile {
	return &destination.DestinationProfile{
		FullyQualifiedName: "web.default.svc.cluster.local", DstOverrides: targets,
	}
}

func to(authority string, weight uint32) *destination.WeightedDst {
	return &destination.WeightedDst{Authority: authority, Weight: weight}
}

const leafA, leafB = "a.default.svc.cluster.local:80", "b.default.svc.cluster.local:80"

// expect sends requests from several goroutines and checks the targets that served them.
func (m *mesh) expect(want map[string]float64) {
	m.t.Helper()
	const callers, each = 4, 500
	got := make(map[string]int)
	var mu sync.Mutex
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range each {
				s, err := m.router.Call(m.t.Context(), "/")
				assert.NoError(m.t, err)
				mu.Lock()
				got[s.by]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	const n = callers * each
	for authority, share := range want {
		assert.InDelta(m.t, n*share, got[authority], 6*math.Sqrt(n*share*(1-share)), authority)
	}
	assert.Len(m.t, got, len(want))
}

func TestD1AddAnOverride(t *testing.T) {
	m := newMesh(t)
	m.expect(map[string]float64{apex: 1}) // before the first profile
	m.setProfile(overrides())
	m.expect(map[string]float64{apex: 1})
	m.setProfile(overrides(to(leafA, 10000)))
	m.expect(map[string]float64{leafA: 1})
}

func TestD2AddMultipleOverrides(t *testing.T) {
	m := newMesh(t)
	m.setProfile(overrides())
	m.expect(map[string]float64{apex: 1})
	m.setProfile(overrides(to(leafA, 5000), to(leafB, 5000)))
	m.expect(map[string]float64{leafA: 0.5, leafB: 0.5})
	m.setProfile(overrides(to(apex, 9000), to(leafA, 1000)))
	m.expect(map[string]float64{apex: 0.9, leafA: 0.1})
	assert.Equal(t, map[string]int{apex: 1, leafA: 1, leafB: 1}, m.made)
}

func TestD3SetAWeightToZero(t *testing.T) {
	m := newMesh(t)
	m.setProfile(overrides(to(leafA, 5000), to(leafB, 5000)))
	m.expect(map[string]float64{leafA: 0.5, leafB: 0.5})
	m.setProfile(overrides(to(leafA, 5000), to(leafB, 0)))
	m.expect(map[string]float64{leafA: 1})
}

func TestD3SetAllWeightsToZero(t *testing.T) {
	m := newMesh(t)
	m.setProfile(overrides(to(leafA, 5000), to(leafB, 5000)))
	m.expect(map[string]float64{leafA: 0.5, leafB: 0.5})
	m.setProfile(overrides(to(leafA, 0), to(leafB, 0)))
	m.expect(map[string]float64{apex: 1})
}

func TestD4RemoveAnOverride(t *testing.T) {
	m := newMesh(t)
	m.setProfile(overrides(to(leafA, 10000)))
	m.expect(map[string]float64{leafA: 1})
	m.setProfile(overrides())
	m.expect(map[string]float64{apex: 1})
}

// After a lost stream and other errors the last profile stays current; the
// next stream's first message replaces it.
func TestLostStreamKeepsProfile(t *testing.T) {
	for _, end := range []error{nil, status.Error(codes.Unavailable, "restart"), status.Error(codes.NotFound, "not yet")} {
		m := newMesh(t)
		m.setProfile(overrides(to(leafA, 1)))
		m.stream.end <- end
		require.Error(t, <-m.taken)
		m.expect(map[string]float64{leafA: 1})
		m.stream = <-m.streams
		m.expect(map[string]float64{leafA: 1})
		m.setProfile(overrides(to(leafB, 1)))
		m.expect(map[string]float64{leafB: 1})
	}
}

func TestFinalStatusKeepsProfile(t *testing.T) {
	m := newMesh(t)
	m.stream.end <- status.Error(codes.InvalidArgument, "not a name of mine")
	require.ErrorIs(t, <-m.taken, profiles.ErrNoProfile)
	m.expect(map[string]float64{apex: 1})
}

// Invalid parts of a message are left out by this package or by the Router. The
// rest takes effect.
func TestInvalidPartsEndToEnd(t *testing.T) {
	m := newMesh(t)
	m.setProfile(&destination.DestinationProfile{
		Routes: []*destination.Route{
			{Condition: path("("), MetricsLabels: map[string]string{"route": "bad"}},
			{Condition: anyOf(path("("), path("/good/.*")), MetricsLabels: map[string]string{"route": "good"}},
		},
		DstOverrides: []*destination.WeightedDst{to("10.0.0.1:80", 1000), to(leafA, 1)},
	})
	s, err := m.router.Call(t.Context(), "/good/(")
	require.NoError(t, err)
	assert.Equal(t, served{leafA, &layer.Route{Name: "good", Labels: map[string]string{"route": "good"}}}, s)
	s, err = m.router.Call(t.Context(), "(")
	require.NoError(t, err)
	assert.Equal(t, served{leafA, nil}, s)
}
