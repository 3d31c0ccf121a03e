package controller

import (
	"maps"
	"sync"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/require"
)

// objects is a source. Each host uses the object with its name, and each port the object
// "server".
type objects struct {
	mu     sync.Mutex
	hosts  map[string]Destination
	seen   []Client
	access AccessPolicy
	looked map[string]int
}

func (s *objects) Destination(client Client, host string, _ uint16, _ bool) (Destination, []Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked[host]++
	s.seen = append(s.seen, client)
	d, ok := s.hosts[host]
	if !ok {
		d.Absent = host != "10.1.1.1"
	}
	return d, []Object{{Kind: "Host", Name: host}}
}

func (s *objects) Server(string, uint16) (*inbound.Server, []Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return DefaultServer(s.access, nil, false), []Object{{Kind: "Server"}}
}

func (s *objects) set(host string, d Destination) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[host] = d
}

func (s *objects) lookUps() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer clear(s.looked)
	return maps.Clone(s.looked)
}

// An answer about endpoints can depend on the node of the client, and a policy on its namespace.
func TestSourceClients(t *testing.T) {
	s := &objects{hosts: map[string]Destination{"web.test": {}}, looked: map[string]int{}}
	c := New(nil)
	c.Use(s)
	conn := connected(t, c)
	for _, token := range []string{`{"ns":"shop","nodeName":"n1","pod":"p"}`, "ns:shop", ""} {
		stream, err := pb.NewDestinationClient(conn).Get(within20s(t), &pb.GetDestination{Path: web, ContextToken: token})
		require.NoError(t, err)
		recv(t, stream)
	}
	for _, workload := range []string{`{"ns":"shop","pod":"p"}`, "old:p", ""} {
		spec := named(web)
		spec.SourceWorkload = workload
		_, err := outbound.NewOutboundPoliciesClient(conn).Get(within20s(t), spec)
		require.NoError(t, err)
	}
	require.Equal(t, []Client{{Node: "n1"}, {}, {Namespace: "shop"}, {Namespace: "old"}}, s.seen)
}

// A changed object causes look-ups only of names that use it and have streams. An invalid
// destination leaves the last valid one active.
func TestSourceChanged(t *testing.T) {
	s := &objects{hosts: map[string]Destination{}, access: Deny, looked: map[string]int{}}
	s.set("web.test", Destination{Endpoints: endpointsAt("10.0.0.1:80")})
	c := New(nil)
	client := served(t, c)
	early := get(t, client, web)
	c.Changed(Object{Kind: "Host", Name: "web.test"}) // no effect
	c.Use(s)
	same(t, addition(nil, plain(1, 80)), recv(t, early))
	require.Equal(t, map[string]int{"web.test": 1}, s.lookUps())
	late, other := get(t, client, web), get(t, client, "other.test:80")
	same(t, addition(nil, plain(1, 80)), recv(t, late))
	same(t, none(false), recv(t, other))
	require.Equal(t, map[string]int{"other.test": 1}, s.lookUps(), "streams of one name share the look-up")

	s.set("web.test", Destination{Endpoints: endpointsAt("10.0.0.1:80", "10.0.0.2:80")})
	c.Changed(Object{Kind: "Host", Name: "web.test"}, Object{Kind: "Host", Name: "unused.test"})
	for _, stream := range []interface{ Recv() (*pb.Update, error) }{early, late} {
		msg, err := stream.Recv()
		require.NoError(t, err)
		same(t, addition(nil, plain(2, 80)), msg)
	}
	require.Equal(t, map[string]int{"web.test": 1}, s.lookUps())

	s.set("web.test", Destination{Labels: map[string]string{"": "invalid"}})
	c.Changed(Object{Kind: "Host", Name: "web.test"})
	s.set("web.test", Destination{Endpoints: endpointsAt("10.0.0.2:80")})
	c.Changed(Object{Kind: "Host", Name: "web.test"})
	same(t, removal(tcp(1, 80)), recv(t, early))

	// The policy of an address is that of the name in its profile.
	s.set("10.1.1.1", Destination{Profile: &Profile{Name: "web.test"}})
	key := target{host: "10.1.1.1", port: 80, ip: true}
	c.mu.Lock()
	c.hold(key)
	require.Equal(t, "web.test", c.entry(key).outbound().GetMetadata().GetResource().GetName())
	require.Equal(t, []Object{{Kind: "Host", Name: "10.1.1.1"}, {Kind: "Host", Name: "web.test"}}, c.watched[key].uses)
	before := c.entry(key)
	c.mu.Unlock()
	s.set("web.test", Destination{Policy: &outbound.OutboundPolicy{}})
	c.Changed(Object{Kind: "Host", Name: "web.test"})
	c.mu.Lock()
	require.NotSame(t, before, c.entry(key))
	require.Nil(t, c.entry(key).outbound().GetMetadata())
	c.drop(key)
	require.NotContains(t, c.users, Object{Kind: "Host", Name: "10.1.1.1"}, "nothing is kept for names without streams")

	port := serverKey{"", 80}
	c.hold(port)
	require.Empty(t, c.serverOf(port).GetAuthorizations())
	s.access = AllUnauthenticated
	c.mu.Unlock()
	c.Changed(Object{Kind: "Server"})
	c.mu.Lock()
	require.Len(t, c.serverOf(port).GetAuthorizations(), 1)
	c.drop(port)
	c.mu.Unlock()
}
