package controller

import (
	"math"
	"net"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// routeError returns the mistakes in a valid route after a change.
func routeError(change func(*Route)) error {
	r := Route{Name: "r", Match: Match{Path: "/"}}
	change(&r)
	return (&Profile{Routes: []Route{r}}).Validate()
}

// budgetError returns the mistakes in a valid budget after a change.
func budgetError(change func(*RetryBudget)) error {
	b := RetryBudget{Ratio: 0.2, TTL: time.Second}
	change(&b)
	return (&Profile{Budget: &b}).Validate()
}

// TestCheckBoundaries has the values at the limits that are still valid. The tests of Parse
// and Set have the invalid values.
func TestCheckBoundaries(t *testing.T) {
	for name, c := range map[string]struct {
		err error
		ok  bool
	}{
		"status 100-999":          {routeError(func(r *Route) { r.Classes = []ResponseClass{{Min: 100, Max: 999}} }), true},
		"status 200-200":          {routeError(func(r *Route) { r.Classes = []ResponseClass{{Min: 200, Max: 200}} }), true},
		"status 99-200":           {routeError(func(r *Route) { r.Classes = []ResponseClass{{Min: 99, Max: 200}} }), false},
		"status 200-1000":         {routeError(func(r *Route) { r.Classes = []ResponseClass{{Min: 200, Max: 1000}} }), false},
		"ratio 0":                 {budgetError(func(b *RetryBudget) { b.Ratio = 0 }), true},
		"ratio 1000":              {budgetError(func(b *RetryBudget) { b.Ratio = 1000 }), true},
		"ratio below 0":           {budgetError(func(b *RetryBudget) { b.Ratio = math.Nextafter(0, -1) }), false},
		"ratio above 1000":        {budgetError(func(b *RetryBudget) { b.Ratio = math.Nextafter(1000, 2000) }), false},
		"ratio infinite":          {budgetError(func(b *RetryBudget) { b.Ratio = math.Inf(1) }), false},
		"min_per_second 0":        {budgetError(func(b *RetryBudget) { b.MinPerSecond = 0 }), true},
		"min_per_second 2^31-1":   {budgetError(func(b *RetryBudget) { b.MinPerSecond = math.MaxInt32 }), true},
		"min_per_second 2^31":     {budgetError(func(b *RetryBudget) { b.MinPerSecond = math.MaxInt32 + 1 }), false},
		"ttl 1s":                  {budgetError(func(b *RetryBudget) { b.TTL = time.Second }), true},
		"ttl 1m":                  {budgetError(func(b *RetryBudget) { b.TTL = time.Minute }), true},
		"ttl below 1s":            {budgetError(func(b *RetryBudget) { b.TTL = time.Second - 1 }), false},
		"ttl above 1m":            {budgetError(func(b *RetryBudget) { b.TTL = time.Minute + 1 }), false},
		"timeout 0":               {routeError(func(r *Route) { r.Timeout = 0 }), true},
		"timeout below 0":         {routeError(func(r *Route) { r.Timeout = -1 }), false},
		"label of 63":             {checkName(strings.Repeat("a", 63)), true},
		"label of 64":             {checkName(strings.Repeat("a", 64)), false},
		"name of 253":             {checkName(strings.Repeat("a.", 126) + "a"), true},
		"name of 255":             {checkName(strings.Repeat("a.", 127) + "a"), false},
		"name that begins with 1": {checkName("1a.2.b3"), true},
		"no method":               {checkMethod(""), true},
		"method of its own":       {checkMethod("x-purge!"), true},
		"no path":                 {checkPath(""), true},
		"path":                    {checkPath(`^/a(b|c)+\.[^/]*$`), true},
		"path with look-ahead":    {checkPath(`/a(?=b)`), false},
		"no identity":             {checkIdentity(""), true},
		"URI":                     {checkIdentity("spiffe://trust.domain/ns/x"), true},
		"URI without host":        {checkIdentity("spiffe:///x"), false},
		"authority is an address": {checkAuthority("10.0.0.1:80"), true},
		"authority without port":  {checkAuthority("web.test"), true},
		"authority is IPv6":       {checkAuthority("[::1]"), true},
		"authority in no bracket": {checkAuthority("::1"), false},
		"name in brackets":        {checkAuthority("[web]"), false},
		"split without port":      {checkSplit("web.test"), false},
		"path that is too large":  {checkPath("(/(a?){10}){100}(/(a?){10}){100}(/(a?){10}){100}"), false},
		"IPv6":                    {(&Profile{Endpoint: &Endpoint{Addr: addr("[2001:db8::1]:65535")}}).Validate(), true},
		"IPv6 unspecified":        {(&Profile{Endpoint: &Endpoint{Addr: addr("[::]:80")}}).Validate(), false},
	} {
		if c.ok {
			assert.NoError(t, c.err, name)
		} else {
			assert.Error(t, c.err, name)
		}
	}
}

// A gRPC server of one's own stops in good order once the controller has.
func TestRegisterOnAnotherServer(t *testing.T) {
	c := New(nil)
	set(t, c, Config{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	c.Register(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	stream := get(t, pb.NewDestinationClient(conn), web)
	same(t, none(false), recv(t, stream))

	c.Stop()
	server.GracefulStop()
	require.NoError(t, <-ended)
	ends(t, stream)
	require.NoError(t, conn.Close())
}

// All streams of a name receive the same messages, and streams of other names receive none.
func TestHub(t *testing.T) {
	f := hub[string, int]{}
	a, b, other := f.subscribe("x"), f.subscribe("x"), f.subscribe("y")
	f.publish("x", []int{1, 2})
	f.publish("other", []int{9})
	require.Equal(t, []int{1, 2, 1, 2}, []int{<-a.queue, <-a.queue, <-b.queue, <-b.queue})
	require.Empty(t, other.queue)

	// There is room for one of two messages: none of them is queued, because
	// half of a change is worse than a new start.
	for i := range queueLength - 1 {
		f.publish("x", []int{i})
		<-b.queue
	}
	f.publish("x", []int{-1, -2})
	require.Len(t, a.queue, queueLength-1)
	require.Len(t, b.queue, 2)
	<-a.slow
	select {
	case <-b.slow:
		t.Fatal("a client that keeps up was cut off")
	default:
	}

	f.unsubscribe("x", a) // it is gone already
	f.unsubscribe("x", b)
	f.unsubscribe("y", other)
	require.Empty(t, f, "names without streams are removed")
}
