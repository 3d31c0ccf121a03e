package reliability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/layertest"
)

// A day of random faults hits the whole sidecar, in virtual time and memory, while clients send
// steadily. A request may only fail because of a fault in an endpoint that received it: a crash or
// abort at that moment, or a stall that outlasts the client's patience. Only a crash or abort may
// make a request arrive again. Outages of the controller, removed endpoints, slow bodies and
// clients that leave do not explain why any other request fails.
func TestDayOfFaults(t *testing.T) {
	length := 10 * time.Minute
	if full {
		length = 24 * time.Hour
	} else {
		t.Parallel()
	}
	synctest.Test(t, func(t *testing.T) { newDay(t).run(length, 1) })
}

const (
	dayEndpoints  = 6
	dayPatience   = 5 * time.Second        // a client's, for the response and each part of its body
	dayInterval   = 500 * time.Millisecond // mean time between a client's requests
	dayQuiet      = 20 * time.Second       // mean time between faults in half of the endpoints
	dayConnected  = 2 * time.Minute        // mean time between outages of the controller
	dayMean       = 10 * time.Second       // mean length of a fault
	dayLongest    = time.Minute            // longest fault
	dayRemoval    = time.Second            // until a removed endpoint receives no more requests
	dayReconnect  = dayLongest             // until the proxy has reconnected to the controller after an outage
	dayRecovery   = 2 * time.Minute        // until a recovered endpoint receives requests
	dayController = "10.0.0.1:8086"
	dayProxy      = "127.0.0.1:4140"
	dayAdmin      = "127.0.0.1:4191"
)

// day is one run: a controller, endpoints, a proxy, and a record of what happened.
type day struct {
	t         *testing.T
	network   layertest.Network
	endpoints []*dayEndpoint

	mu        sync.Mutex
	listed    []bool // endpoints that the controller lists
	plane     *controller.Controller
	stopPlane func()
	faults    []*fault
	arrivals  map[string][]int // endpoints that received a request
	total     int
	failures  int
}

// fault is one endpoint's fault, which may explain failures.
type fault struct {
	kind       string
	endpoint   int
	begin, end time.Time // end is zero while the fault lasts
}

func newDay(t *testing.T) *day {
	d := &day{t: t, arrivals: make(map[string][]int)}
	for i := range dayEndpoints {
		e := &dayEndpoint{
			network: &d.network, addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), 80),
			arrived: func(request string) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.arrivals[request] = append(d.arrivals[request], i)
			},
		}
		e.start(t)
		d.endpoints, d.listed = append(d.endpoints, e), append(d.listed, true)
	}
	d.startPlane()
	return d
}

// run lets the proxy serve for some time, while one injector causes faults in each half of the
// endpoints, and another one in the controller. It then checks the record.
func (d *day) run(length time.Duration, seed uint64) {
	proxy, err := sidecar.New(sidecar.Config{Settings: daySettings(d.t), Network: &d.network}, slog.New(slog.DiscardHandler))
	require.NoError(d.t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- proxy.Run(ctx) }()

	sending, end := context.WithTimeout(ctx, length)
	defer end()
	var work sync.WaitGroup
	for i, http2 := range []bool{false, false, true, true} {
		work.Go(func() { d.send(sending, i, http2, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	for i, injector := range []struct {
		quiet  time.Duration
		inject func(*rand.Rand)
	}{
		{dayQuiet, func(r *rand.Rand) { d.injectAt(sending, 2*r.IntN(dayEndpoints/2), r) }},
		{dayQuiet, func(r *rand.Rand) { d.injectAt(sending, 2*r.IntN(dayEndpoints/2)+1, r) }},
		{dayConnected, d.outage},
	} {
		work.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for {
				select {
				case <-time.After(exponential(injector.quiet, random)):
					injector.inject(random)
				case <-sending.Done():
					return
				}
			}
		})
	}
	work.Wait()
	stop()
	require.NoError(d.t, <-done)
	for _, e := range d.endpoints {
		e.crash()
	}
	d.stopPlane()
	time.Sleep(time.Minute) // endpoints' handlers sleep before they notice
	kinds := make(map[string]int)
	for _, f := range d.faults {
		kinds[f.kind]++
	}
	d.t.Logf("%v: %d requests, %d failed, all explained: %t; faults: %v", length, d.total, d.failures, !d.t.Failed(), kinds)
}

// exponential returns an exponentially distributed random time with the given mean.
func exponential(mean time.Duration, random *rand.Rand) time.Duration {
	return time.Duration(random.ExpFloat64() * float64(mean))
}

// injectAt causes one fault in endpoint i, and waits until the endpoint receives requests again or
// ctx ends.
func (d *day) injectAt(ctx context.Context, i int, random *rand.Rand) {
	e, lasts := d.endpoints[i], min(exponential(dayMean, random), dayLongest)
	switch random.IntN(4) {
	case 0:
		end := d.record("crash", i)
		e.crash()
		time.Sleep(lasts)
		e.start(d.t)
		end()
	case 1:
		end := d.record("abort", i)
		e.abort()
		end()
	case 2:
		end, endStall := d.record("stall", i), e.stall()
		time.Sleep(lasts)
		endStall()
		end()
	case 3:
		end := d.record("removal", i)
		d.list(i, false)
		d.removed(i, lasts)
		d.list(i, true)
		end()
	}
	d.recovered(ctx, i)
}

// outage stops the controller for some time. It continues with the list of that time.
func (d *day) outage(random *rand.Rand) {
	end := d.record("outage", -1)
	d.stopPlane()
	time.Sleep(min(exponential(dayMean, random), dayLongest))
	d.startPlane()
	end()
}

// removed waits for some time, in which the endpoint must not receive requests after dayRemoval,
// unless the proxy was not connected to the controller.
func (d *day) removed(i int, lasts time.Duration) {
	time.Sleep(dayRemoval)
	before, begin := d.endpoints[i].requests(), time.Now()
	time.Sleep(lasts)
	if !d.outageSince(begin.Add(-dayReconnect)) {
		assert.Equal(d.t, before, d.endpoints[i].requests(), "requests to an endpoint that was removed")
	}
}

// record records a fault. The returned function ends it.
func (d *day) record(kind string, endpoint int) (end func()) {
	f := &fault{kind: kind, endpoint: endpoint, begin: time.Now()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, f)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		f.end = time.Now()
	}
}

// recovered waits until the endpoint receives a request or ctx ends. A removed endpoint receives
// none until the proxy is connected to the controller.
func (d *day) recovered(ctx context.Context, i int) {
	before, begin := d.endpoints[i].requests(), time.Now()
	for d.endpoints[i].requests() == before && ctx.Err() == nil {
		if time.Since(begin) > dayRecovery && !d.outageSince(time.Now().Add(-dayRecovery)) {
			assert.Fail(d.t, "an endpoint that has recovered receives no request", "endpoint %d from %s on\n%s", i, begin.Format(time.StampMilli), d.stack())
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// stack returns the proxy's layers with their state.
func (d *day) stack() string {
	transport := &http.Transport{DialContext: d.network.DialContext, DisableKeepAlives: true}
	rsp, err := (&http.Client{Transport: transport}).Get("http://" + dayAdmin + "/stack")
	if err != nil {
		return err.Error()
	}
	defer rsp.Body.Close()
	text, _ := io.ReadAll(rsp.Body)
	return string(text)
}

// send sends random requests until ctx ends, without waiting for earlier ones.
func (d *day) send(ctx context.Context, client int, http2 bool, random *rand.Rand) {
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.network.DialContext(ctx, "tcp", dayProxy)
	}}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	defer transport.CloseIdleConnections()
	var open sync.WaitGroup
	defer open.Wait()
	for n := 0; ctx.Err() == nil; n++ {
		r := dayRequest{name: fmt.Sprintf("%d-%d", client, n), begin: time.Now(), size: 1000}
		switch random.IntN(8) {
		case 0:
			r.size = 1 << 20
		case 1:
			r.upload = 256 << 10
		case 2:
			r.size, r.pause = 4*dayPart, time.Second
		case 3:
			r.size, r.pause, r.leaves = 4*dayPart, time.Second, time.Duration(random.IntN(5000))*time.Millisecond
		}
		open.Go(func() {
			err := r.do(transport)
			d.check(r, err)
		})
		time.Sleep(exponential(dayInterval, random))
	}
}

// dayRequest is one of a client's requests.
type dayRequest struct {
	name   string
	begin  time.Time
	size   int           // the response body's size
	pause  time.Duration // between parts of the response body
	upload int           // the request body's size
	leaves time.Duration // when the client cancels; 0: never
}

// errLeft is the result of a request that its client canceled.
var errLeft = errors.New("the client has canceled")

// do sends the request and reads the response.
func (r dayRequest) do(transport http.RoundTripper) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	impatient := time.AfterFunc(dayPatience, func() { cancel(context.DeadlineExceeded) })
	defer impatient.Stop()
	if r.leaves > 0 {
		defer time.AfterFunc(r.leaves, func() { cancel(errLeft) }).Stop()
	}
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if r.upload > 0 {
		method, body = http.MethodPost, strings.NewReader(strings.Repeat("x", r.upload))
	}
	req, err := http.NewRequestWithContext(ctx, method,
		fmt.Sprintf("http://%s/?size=%d&pause=%v", webName, r.size, r.pause), body)
	if err != nil {
		return err
	}
	req.Header.Set("X-Request", r.name)
	rsp, err := transport.RoundTrip(req)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer rsp.Body.Close()
	if rsp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", rsp.StatusCode, rsp.Header.Get("L5d-Proxy-Error"))
	}
	if got := rsp.Header.Get("X-Got"); got != strconv.Itoa(r.upload) {
		return fmt.Errorf("%s bytes were received", got)
	}
	total := 0
	for buf := make([]byte, 64<<10); ; {
		impatient.Reset(dayPatience)
		n, err := rsp.Body.Read(buf)
		total += n
		switch {
		case errors.Is(err, io.EOF) && total == r.size:
			return nil
		case err != nil:
			return errors.Join(context.Cause(ctx), fmt.Errorf("after %d of %d bytes: %w", total, r.size, err))
		}
	}
}

// check records a request's result. An unexplained failure fails the test.
func (d *day) check(r dayRequest, err error) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total++
	endpoints := d.arrivals[r.name]
	delete(d.arrivals, r.name)
	if err == nil || errors.Is(err, errLeft) {
		assert.LessOrEqual(d.t, len(endpoints), 1+d.repeats(r, endpoints), "attempts of %s, upload %d, from %v to %v, at endpoints %v: %v\nlast faults: %v",
			r.name, r.upload, r.begin.Format(time.StampMilli), now.Format(time.StampMilli), endpoints, err, d.last())
		return
	}
	d.failures++
	if !slices.ContainsFunc(d.faults, func(f *fault) bool { return f.explains(r, now, endpoints, err) }) && !d.wasIdle(r, endpoints, err) {
		assert.Fail(d.t, "a failure without an explanation", "%s, %d bytes, upload %d, from %v to %v, at endpoints %v: %v\nlast faults: %v",
			r.name, r.size, r.upload, r.begin.Format(time.StampMilli), now.Format(time.StampMilli), endpoints, err, d.last())
	}
}

// repeats returns how often the proxy may have sent r again. It may repeat a request with an
// idempotent method each time a fault closes a reused connection before the response's first byte.
func (d *day) repeats(r dayRequest, endpoints []int) (n int) {
	if r.upload > 0 {
		return 0
	}
	for _, f := range d.faults {
		if (f.kind == "crash" || f.kind == "abort") && slices.Contains(endpoints, f.endpoint) && !f.begin.Before(r.begin) {
			n++
		}
	}
	return n
}

// explains reports whether the fault explains that r failed with err at the time now.
func (f *fault) explains(r dayRequest, now time.Time, endpoints []int, err error) bool {
	here := slices.Contains(endpoints, f.endpoint)
	switch f.kind {
	case "crash", "abort":
		// A request that was written but not received yet fails as well.
		return (here || len(endpoints) == 0) && f.begin.Equal(now)
	case "stall":
		during := f.begin.Before(now) && (f.end.IsZero() || !f.end.Before(r.begin))
		return (here || len(endpoints) == 0) && during && errors.Is(err, context.DeadlineExceeded)
	}
	return false
}

// wasIdle reports whether an upload failed because it was sent on an idle connection that a fault
// had closed. An in-memory network has no sockets, so the proxy cannot notice that before it has
// read a part of the upload.
func (d *day) wasIdle(r dayRequest, endpoints []int, err error) bool {
	return r.upload > 0 && len(endpoints) == 0 && strings.Contains(err.Error(), "broken pipe") &&
		slices.ContainsFunc(d.faults, func(f *fault) bool {
			return (f.kind == "crash" || f.kind == "abort") && strings.Contains(err.Error(), d.endpoints[f.endpoint].addr.String())
		})
}

// last describes the most recent faults.
func (d *day) last() (text []string) {
	for _, f := range d.faults[max(0, len(d.faults)-3):] {
		text = append(text, fmt.Sprintf("%s at %d from %s", f.kind, f.endpoint, f.begin.Format(time.StampMilli)))
	}
	return text
}

// startPlane starts the controller.
func (d *day) startPlane() {
	l, err := d.network.Listen("tcp", dayController)
	require.NoError(d.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done, plane := make(chan error, 1), controller.New(nil)
	go func() { done <- plane.Serve(ctx, l) }()
	d.stopPlane = func() {
		cancel()
		require.NoError(d.t, <-done)
	}
	d.mu.Lock()
	d.plane = plane
	d.mu.Unlock()
	d.update()
}

// list makes the controller list endpoint i, or remove it from the list.
func (d *day) list(i int, listed bool) {
	d.mu.Lock()
	d.listed[i] = listed
	d.mu.Unlock()
	d.update()
}

// update sends the list of endpoints to the controller.
func (d *day) update() {
	d.mu.Lock()
	defer d.mu.Unlock()
	var addrs []string
	for i, e := range d.endpoints {
		if d.listed[i] {
			addrs = append(addrs, e.addr.String())
		}
	}
	require.NoError(d.t, d.plane.Set(served(webName, controller.Unknown, addrs...)))
}

// outageSince reports whether the controller had an outage after begin.
func (d *day) outageSince(begin time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.faults, func(f *fault) bool {
		return f.kind == "outage" && (f.end.IsZero() || f.end.After(begin))
	})
}

// daySettings returns the proxy's default settings with the day's addresses. Connections have no
// original destination, so requests must name their target.
func daySettings(t testing.TB) settings.Settings {
	variables := map[string]string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR":         dayController,
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR":         dayProxy,
		"LINKERD2_PROXY_INBOUND_LISTEN_ADDR":          "127.0.0.1:4143",
		"LINKERD2_PROXY_ADMIN_LISTEN_ADDR":            dayAdmin,
		"LINKERD2_PROXY_CONTROL_LISTEN_ADDR":          "127.0.0.1:4190",
		"LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES": ".",
	}
	s, err := settings.Read(func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	})
	require.NoError(t, err)
	s.Control.Connect.Backoff.Max = 10 * time.Second
	s.Outbound.Origin = settings.Origin{Kind: settings.Fixed, Addr: netip.MustParseAddrPort(dayProxy)}
	s.Inbound.Origin = settings.Origin{Kind: settings.Fixed, Addr: netip.MustParseAddrPort("127.0.0.1:80")}
	return s
}
