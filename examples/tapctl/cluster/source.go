package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// Source watches the taps in all pods of some resources. It starts to watch each new pod, and
// stops to watch a pod that ends. It implements [top.Source].
//
// [Source.Watch] and [Source.Top] yield an error for a pod without a proxy, an unreachable tap,
// or a lost connection to the API server. They then continue. They end when every pod has
// rejected the request or has reached the request's limit. If the resources have no pods yet,
// they wait for the first one.
type Source struct {
	Cluster   *Cluster
	Resources []Resource

	// Dial returns a connection to a pod's tap. The Source closes it.
	Dial func(ctx context.Context, p Pod) (*grpc.ClientConn, error)
}

var _ top.Source = (*Source)(nil)

// Name returns the name of the pod in events and errors: namespace/name if the resources
// are not all in one namespace, and only the name otherwise.
func (s *Source) Name(p Pod) string {
	if common(s.Resources) == "" {
		return p.Namespace + "/" + p.Name
	}
	return p.Name
}

// Watch yields the events of the requests that match req, and errors, as [top.Source] requires. If
// an event's client or endpoint is a pod in the watched namespace, the event also gets that pod's
// labels.
func (s *Source) Watch(ctx context.Context, req *tappb.WatchRequest, maxRPS int) iter.Seq2[tap.ProcessEvent, error] {
	// retryTime is when the watch should end, if the request has a duration.
	var retryTime time.Time
	if d := req.GetDuration(); d != nil {
		retryTime = time.Now().Add(d.AsDuration())
	}
	// follow watches a single pod. Its share of the rate is sent to the process.
	follow := func(ctx context.Context, p tap.Process, share int) iter.Seq2[tap.ProcessEvent, error] {
		req := proto.CloneOf(req)
		req.MaxRps = uint32(share)
		if !retryTime.IsZero() {
			// A pod that appears later is only watched for the rest of the time. 0 would mean no limit.
			req.Duration = durationpb.New(max(time.Until(retryTime), 1))
		}
		return tap.Follow(ctx, []tap.Process{p}, req)
	}
	return func(yield func(tap.ProcessEvent, error) bool) {
		var pods *Pods
		for i := range each(ctx, s, maxRPS, follow) {
			// The order matters: each item has one of these, or is a tick.
			switch {
			case i.pods != nil:
				pods = i.pods
			case i.err != nil:
				if !yield(tap.ProcessEvent{}, i.err) {
					return
				}
			// The names come from the last list of pods.
			case i.pod != nil && !i.ended:
				i.value.Event = named(i.value.Event, i.pod, pods)
				if !yield(i.value, nil) {
					return
				}
			}
		}
	}
}

// Top yields all pods' rows, added up, and errors, as [top.Source] requires. Clients and
// endpoints get their pods' names, if these pods are in the watched namespace. When a pod has
// ended, its rows are removed.
func (s *Source) Top(ctx context.Context, req *tappb.TopRequest, maxRPS int) iter.Seq2[*tappb.TopResponse, error] {
	// A table needs no share of the rate, because it only counts.
	follow := func(ctx context.Context, p tap.Process, _ int) iter.Seq2[*tappb.TopResponse, error] {
		return tap.FollowTop(ctx, []tap.Process{p}, req)
	}
	return func(yield func(*tappb.TopResponse, error) bool) {
		every := time.Second
		if d := req.GetEvery(); d != nil {
			every = d.AsDuration()
		}
		next := time.Now().Add(every)
		// rows contains the last table of each pod.
		rows := map[string]*tappb.TopResponse{}
		var pods *Pods
		for i := range each(ctx, s, maxRPS, follow) {
			switch {
			case i.pods != nil:
				pods = i.pods
			case i.err != nil:
				if !yield(nil, i.err) {
					return
				}
			case i.ended:
				delete(rows, i.pod.key())
			case i.pod != nil:
				rows[i.pod.key()] = namedRows(i.value, i.pod, pods)
			}
			// Items arrive more often than tables are due. Ticks make sure that there is one in time.
			if time.Now().Before(next) {
				continue
			}
			next = time.Now().Add(every)
			if !yield(tap.MergeTop(rows, req), nil) {
				return
			}
		}
	}
}

// item is one element in the sequence that [each] returns: the pods after a change, an error, a
// value from a pod, or the end of a pod's sequence. At each tick there is an item in which no
// field is set.
type item[T any] struct {
	pods  *Pods
	err   error
	pod   *Pod // the pod to which value or ended belongs
	value T
	ended bool // the pod's sequence has ended; value is not set
}

// tick is the interval at which the sequence of [each] yields an empty item, so that its
// consumer can check the time.
const tick = 100 * time.Millisecond

// errNoProxy is the error of a pod that cannot be watched.
var errNoProxy = errors.New("the pod has no proxy: inject it")

// members holds the pods that [each] follows now. For each pod, a goroutine sends the pod's items
// to the channel items.
type members[T any] struct {
	*Source

	follow func(ctx context.Context, p tap.Process, share int) iter.Seq2[T, error] // share is the pod's part of maxRPS
	maxRPS int                                                                     // the rate for all pods together
	items  chan item[T]

	running sync.WaitGroup
	all     map[string]*member // by key
}

// member is a pod that is being followed, or was until its sequence ended.
type member struct {
	cancel context.CancelFunc
	ended  bool
}

// key returns a string that identifies a pod and its tap's address.
func (p *Pod) key() string { return string(p.uid) + " " + p.Tap }

// each follows every one of the resources' pods from start to end, and yields all pods' items.
// For each pod, it calls follow, which returns that pod's sequence. maxRPS is the rate of
// requests per second over all pods, of which each call of follow gets a share.
func each[T any](
	ctx context.Context, s *Source, maxRPS int, follow func(ctx context.Context, p tap.Process, share int) iter.Seq2[T, error],
) iter.Seq[item[T]] {
	return func(yield func(item[T]) bool) {
		// Without the deadline of ctx, which gRPC would send to the processes.
		memberCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		// The deferred call stops AfterFunc when the sequence ends first.
		defer context.AfterFunc(ctx, cancel)()
		m := &members[T]{Source: s, follow: follow, maxRPS: maxRPS, items: make(chan item[T]), all: map[string]*member{}}
		// These deferred calls run in reverse: first cancel, then wait for the goroutines.
		defer m.running.Wait()
		defer cancel()
		watched := make(chan struct{})
		m.running.Go(func() {
			defer close(watched)
			m.watch(memberCtx)
		})
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			var i item[T]
			select {
			case <-memberCtx.Done():
				return
			case <-watched: // because of an error, which was yielded
				return
			case <-ticker.C:
			case i = <-m.items:
			}
			switch {
			case i.pods != nil:
				m.update(memberCtx, i.pods)
			case i.ended:
				m.end(i.pod)
			}
			// The sequence ends with the last pod's, unless there has been no pod yet.
			if !yield(i) || i.ended && m.ended() {
				return
			}
		}
	}
}

// send passes i on to each's consumer. It returns false if ctx ends first.
func (m *members[T]) send(ctx context.Context, i item[T]) bool {
	select {
	case m.items <- i:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch sends the resources' pods to the channel items after each change, and also an error for
// each pod without a proxy, and the API server's errors.
func (m *members[T]) watch(ctx context.Context) {
	for pods, err := range m.Cluster.Watch(ctx, m.Resources) {
		if pods != nil {
			// The error of send is ignored, because the loop ends with ctx anyway.
			m.send(ctx, item[T]{pods: pods})
			for _, p := range pods.Of {
				if !p.Meshed() {
					m.send(ctx, item[T]{err: fmt.Errorf("%s: %w", m.Name(p), errNoProxy)})
				}
			}
		}
		if err != nil {
			m.send(ctx, item[T]{err: err})
		}
	}
}

// update starts to follow new pods, and stops to follow those that do not exist any more.
func (m *members[T]) update(ctx context.Context, pods *Pods) {
	// Only pods with a proxy can be followed.
	meshed := slices.DeleteFunc(slices.Clone(pods.Of), func(p Pod) bool { return !p.Meshed() })
	present := make(map[string]bool, len(meshed))
	for _, p := range meshed {
		present[p.key()] = true
		if m.all[p.key()] == nil {
			memberCtx, stop := context.WithCancel(ctx)
			m.all[p.key()] = &member{cancel: stop}
			// The share is that of the current number of pods, and does not change later.
			share := int(top.PerProcess(m.maxRPS, len(meshed)))
			m.running.Go(func() {
				defer stop()
				m.one(ctx, memberCtx, p, share)
			})
		}
	}
	for key, watch := range m.all {
		if !present[key] {
			// The goroutine of one ends, and its last item is ignored.
			watch.cancel()
			delete(m.all, key)
		}
	}
}

// one follows a single pod, p, and sends its items to the consumer. ctx belongs to all pods, and
// memberCtx to this one. It returns when memberCtx ends or p has no more items.
func (m *members[T]) one(ctx, memberCtx context.Context, p Pod, share int) {
	// The end is sent with ctx, because memberCtx may have ended already.
	defer m.send(ctx, item[T]{pod: &p, ended: true})
	conn, err := m.Dial(memberCtx, p)
	if err != nil {
		m.send(ctx, item[T]{err: fmt.Errorf("%s: %w", m.Name(p), err)})
		return
	}
	defer conn.Close()
	for value, err := range m.follow(memberCtx, tap.Process{Name: m.Name(p), Conn: conn}, share) {
		i := item[T]{pod: &p, value: value}
		if err != nil {
			i = item[T]{err: err}
		}
		// After memberCtx has ended, errors are only its consequence.
		if memberCtx.Err() != nil || !m.send(ctx, i) {
			return
		}
	}
}

// end records that p's sequence has ended.
func (m *members[T]) end(p *Pod) {
	if watch := m.all[p.key()]; watch != nil {
		watch.ended = true
	}
}

// ended reports whether every pod's sequence has ended. Without pods, it returns false.
func (m *members[T]) ended() bool {
	// A pod that does not exist any more has been removed from all.
	for _, watch := range m.all {
		if !watch.ended {
			return false
		}
	}
	return len(m.all) > 0
}

// named returns e, an event of the pod p, with more labels. If e's client or endpoint is p or a
// pod in pods, that pod's labels are added.
func named(e tap.Event, p *Pod, pods *Pods) tap.Event {
	source := lookUp(pods, e.Source)
	destination := lookUp(pods, e.Destination)
	// One of the two is the pod itself, whose address may be that of loopback.
	switch e.Direction {
	case tap.Inbound:
		destination = p
	case tap.Outbound:
		source = p
	}
	e.SourceLabels = withLabels(e.SourceLabels, source)
	e.DestinationLabels = withLabels(e.DestinationLabels, destination)
	return e
}

// lookUp returns the pod with the IP address addr, or nil if it is not known.
func lookUp(pods *Pods, addr netip.AddrPort) *Pod {
	if pods == nil || !addr.IsValid() {
		return nil
	}
	return pods.byIP[addr.Addr().Unmap().String()]
}

// withLabels returns a map with the given labels and the labels of the pod p. For a key in
// both, the value in labels is used. withLabels does not change its arguments.
func withLabels(labels map[string]string, p *Pod) map[string]string {
	if p == nil {
		return labels
	}
	merged := p.Labels() // a new map
	maps.Copy(merged, labels)
	return merged
}

// namedRows returns a copy of p's rows with names in place of addresses. A client or endpoint
// gets a name if its address belongs to p or to a pod in pods.
func namedRows(rows *tappb.TopResponse, p *Pod, pods *Pods) *tappb.TopResponse {
	// Copy, because the table belongs to the stream.
	rows = proto.CloneOf(rows)
	// name returns the pod's name for an address. own tells that the address is p's.
	name := func(addr string, own bool) string {
		if own {
			return p.Name
		}
		ip := addr
		if addrPort, err := netip.ParseAddrPort(addr); err == nil { // a destination's address includes a port
			ip = addrPort.Addr().String()
		}
		if pods != nil && pods.byIP[ip] != nil {
			return pods.byIP[ip].Name
		}
		return addr
	}
	for _, r := range rows.GetRows() {
		if r.GetSource() != "" { // it is empty in rows by destination
			r.Source = name(r.GetSource(), r.GetDirection() == pb.TapEvent_OUTBOUND)
		}
		r.Destination = name(r.GetDestination(), r.GetDirection() == pb.TapEvent_INBOUND)
	}
	return rows
}
