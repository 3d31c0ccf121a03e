package dns

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/resolve"
)

// The environment variables of a child process: the condition, and its directory.
const (
	conditionVar = "GOTOWER_DNS_CONDITION"
	directoryVar = "GOTOWER_DNS_DIRECTORY"
)

// outcome is what a resolver gives for a condition: addresses, sorted, and when.
type outcome struct {
	Addrs string
	Err   string
	Took  time.Duration
}

type outcomes struct{ Net, Ours outcome }

// Where net.Resolver gives addresses, so does this package, within its time. Each condition is in a
// process with its own /etc. Where the system does not permit that, net.Resolver is only asked
// the conditions that need no file.
func TestLikeNetResolver(t *testing.T) {
	if name := os.Getenv(conditionVar); name != "" { // a child of this test
		runChild(t, name)
		return
	}
	all, isolated := conditions(), canIsolate(t)
	maps.DeleteFunc(all, func(_ string, c condition) bool { return c.named && !isolated })
	t.Logf("%d conditions, with their own /etc: %v", len(all), isolated)
	got := make(map[string]outcomes)
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(16)
	for name, c := range all {
		group.Go(func() error {
			one, err := compare(t, name, c, isolated)
			mu.Lock()
			defer mu.Unlock()
			got[name] = one
			return err
		})
	}
	require.NoError(t, group.Wait())
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { check(t, all[name], got[name]) })
	}
}

func check(t *testing.T, c condition, got outcomes) {
	t.Helper()
	assert.Equal(t, c.want, got.Ours.Addrs, got.Ours.Err)
	if got.Net == (outcome{}) || c.net == "*" { // was not asked, or has some of the addresses
		return
	}
	if c.differ != "" {
		assert.Equal(t, c.net, got.Net.Addrs, "%s (%s)", got.Net.Err, c.differ)
		return
	}
	assert.Equal(t, c.want, got.Net.Addrs, got.Net.Err)
	if c.want != "" {
		assert.Less(t, got.Ours.Took, got.Net.Took+10*time.Second)
	}
}

// isExpected reports whether check would accept the outcome of net.Resolver.
func (c condition) isExpected(o outcome) bool {
	want := c.want
	if c.differ != "" {
		want = c.net
	}
	return want == "*" || want == o.Addrs
}

// compare runs a condition, again if net.Resolver was too slow for its time limits.
func compare(t *testing.T, name string, c condition, isolated bool) (got outcomes, err error) {
	for range 3 {
		if isolated {
			got, err = inChild(t, name, c)
		} else {
			got = inProcess(t, c)
		}
		if err != nil || got.Net == (outcome{}) || c.isExpected(got.Net) {
			break
		}
	}
	return got, err
}

// directory returns a directory with the files of /etc.
func (c condition) directory(t *testing.T) string {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			panic(err)
		}
	}
	switch c.conf {
	case "none":
	case "directory":
		if err := os.Mkdir(filepath.Join(dir, "resolv.conf"), 0o700); err != nil {
			panic(err)
		}
	case "":
		write("resolv.conf", single)
	default:
		write("resolv.conf", c.conf)
	}
	if c.hosts != "" {
		write("hosts", c.hosts)
	}
	return dir
}

func inChild(t *testing.T, name string, c condition) (outcomes, error) {
	dir := c.directory(t)
	self, err := os.Executable()
	if err != nil {
		return outcomes{}, err
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestLikeNetResolver$", "-test.count=1")
	cmd.Env = append(os.Environ(), conditionVar+"="+name, directoryVar+"="+dir)
	isolate(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return outcomes{}, fmt.Errorf("%s: %w: %s", name, err, out)
	}
	var got outcomes
	data, err := os.ReadFile(filepath.Join(dir, "outcomes"))
	if err != nil {
		return outcomes{}, err
	}
	return got, json.Unmarshal(data, &got)
}

func runChild(t *testing.T, name string) {
	dir := os.Getenv(directoryVar)
	require.NoError(t, enter(dir))
	c := conditions()[name]
	got := outcomes{lookUpNet(t, c, nil), c.follow(t)}
	data, err := json.Marshal(got)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/etc/outcomes", data, 0o600)) // in dir
}

// inProcess runs a condition with the files of the system, of which net.Resolver needs none if the
// name is complete and there is one server.
func inProcess(t *testing.T, c condition) outcomes {
	dir := c.directory(t)
	got := outcomes{Ours: c.follow(t, WithResolvConf(filepath.Join(dir, "resolv.conf")), WithHostsFile(filepath.Join(dir, "hosts")))}
	if c.conf == "" && c.hosts == "" && strings.HasSuffix(c.ask, ".") {
		got.Net = lookUpNet(t, c, func(string) string { return "10.9.0.1:53" })
	}
	return got
}

// lookUpNet asks net.Resolver. replace, if it is not nil, replaces the address of a server.
func lookUpNet(t *testing.T, c condition, replace func(string) string) outcome {
	dial := c.dialer(t)
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if replace != nil {
			address = replace(address)
		}
		return dial(ctx, network, address)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	found, err := r.LookupIPAddr(ctx, c.ask) // LookupNetIP omits zones
	var addrs []netip.Addr
	for _, a := range found {
		addr, _ := netip.AddrFromSlice(a.IP)
		addrs = append(addrs, addr.Unmap().WithZone(a.Zone))
	}
	o := outcome{Addrs: joined(addrs), Took: time.Since(start)}
	if err != nil {
		o.Err = err.Error()
	}
	return o
}

// follow asks this package, until it has the addresses of the condition. If there are none, the
// first item is the outcome.
func (c condition) follow(t *testing.T, opts ...Option) (o outcome) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	for u, err := range New(append(opts, dialer(c.dialer(t)))...).Resolve(ctx, net.JoinHostPort(c.ask, "80")) {
		if err != nil {
			o.Err = err.Error()
		} else {
			o.Addrs, o.Err = joined(endpointAddrs(u)), ""
		}
		if o.Addrs == c.want || c.want == "" {
			break
		}
	}
	o.Took = time.Since(start)
	return o
}

func endpointAddrs(u resolve.Update) (addrs []netip.Addr) {
	for _, e := range u.Endpoints {
		addrs = append(addrs, e.Addr.Addr())
	}
	return addrs
}

// joined returns the addresses as a sorted set.
func joined(addrs []netip.Addr) string {
	var list []string
	for _, addr := range addrs {
		list = append(list, addr.Unmap().String())
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// dialer returns a function that connects to the servers of a condition, which listen on ports of
// loopback. They start with the first connection.
func (c condition) dialer(t *testing.T) dialFunc {
	scripts := map[string]script{}
	if c.script != nil {
		scripts = c.script()
	}
	var mu sync.Mutex
	started := map[string]netip.AddrPort{}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		for _, who := range []string{"refuses " + host, "refuses " + network + " " + host} {
			if _, ok := scripts[who]; ok {
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		at, ok := started[host]
		if !ok {
			s := &server{script: scripts[host]}
			if s.script == nil {
				s.script = func(_ string, _, right dnsmessage.Message) [][]byte { return pack(right) }
			}
			s.put("zone", c.zone...)
			at = s.loopback(t)
			started[host] = at
		}
		return new(net.Dialer).DialContext(ctx, network, at.String())
	}
}
