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

// Source watches the taps of all pods of some resources. It starts to watch a new pod, and
// stops to watch a pod that ends. It implements [top.Source].
//
// [Source.Watch] and [Source.Top] yield an error for a pod without a proxy, an unreachable
// tap, or a lost connection to the API server. They then continue. They end when every pod
// has rejected the request or has reached the limit of the request. If the resources have
// no pods yet, they wait for the first one.
type Source struct {
	Cluster   *Cluster
	Resources []Resource

	// Dial returns a connection to the tap of a pod. The Source closes it.
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
// the client or the endpoint of an event is a pod in the watched namespace, the event also gets the
// labels of that pod.
func (s *Source) Watch(ctx context.Context, req *tappb.WatchRequest, maxRPS int) iter.Seq2[tap.ProcessEvent, error] {
	var until time.Time
	if d := req.GetDuration(); d != nil {
		until = time.Now().Add(d.AsDuration())
	}
	follow := func(ctx context.Context, p tap.Process, share int) iter.Seq2[tap.ProcessEvent, error] {
		req := proto.CloneOf(req)
		req.MaxRps = uint32(share)
		if !until.IsZero() {
			req.Duration = durationpb.New(max(time.Until(until), 1))
		}
		return tap.Follow(ctx, []tap.Process{p}, req)
	}
	return func(yield func(tap.ProcessEvent, error) bool) {
		var pods *Pods
		for i := range each(ctx, s, maxRPS, follow) {
			switch {
			case i.pods != nil:
				pods = i.pods
			case i.err != nil:
				if !yield(tap.ProcessEvent{}, i.err) {
					return
				}
			case i.pod != nil && !i.ended:
				i.value.Event = named(i.value.Event, i.pod, pods)
				if !yield(i.value, nil) {
					return
				}
			}
		}
	}
}

// Top yields the rows of all pods, added up, and errors, as [top.Source] requires. Clients and
// endpoints get the names of their pods, if these pods are in the watched namespace. When a pod has
// ended, its rows are removed.
func (s *Source) Top(ctx context.Context, req *tappb.TopRequest, maxRPS int) iter.Seq2[*tappb.TopResponse, error] {
	follow := func(ctx context.Context, p tap.Process, _ int) iter.Seq2[*tappb.TopResponse, error] {
		return tap.FollowTop(ctx, []tap.Process{p}, req)
	}
	return func(yield func(*tappb.TopResponse, error) bool) {
		every := time.Second
		if d := req.GetEvery(); d != nil {
			every = d.AsDuration()
		}
		next := time.Now().Add(every)
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

// item is one element of the sequence that [each] returns. It contains the pods after a
// change, an error, a value of a pod, or the end of the sequence of a pod. At each tick,
// the sequence has an item in which no field is set.
type item[T any] struct {
	pods  *Pods
	err   error
	pod   *Pod // the pod to which value or ended belongs
	value T
	ended bool // the sequence of pod has ended, and value is not set
}

// tick is the interval at which the sequence of [each] yields an empty item, so that its
// consumer can check the time.
const tick = 100 * time.Millisecond

// errNoProxy is the error of a pod that cannot be watched.
var errNoProxy = errors.New("the pod has no proxy: inject it")

// members has the pods that [each] follows at present. For each pod, a goroutine sends the items of
// the pod to the channel items.
type members[T any] struct {
	*Source

	follow func(ctx context.Context, p tap.Process, share int) iter.Seq2[T, error]
	maxRPS int
	items  chan item[T]

	running sync.WaitGroup
	all     map[string]*member // by key
}

type member struct {
	cancel context.CancelFunc
	ended  bool
}

// key returns a string that identifies a pod and the address of its tap.
func (p *Pod) key() string { return string(p.uid) + " " + p.Tap }

// each follows every pod of the resources from its start to its end, and yields the items of all
// pods. For each pod, it calls the parameter follow, a function that returns the sequence of
// that pod. maxRPS is the maximum rate of requests per second of all pods together. Each call of
// follow gets a share of this rate.
func each[T any](
	ctx context.Context, s *Source, maxRPS int, follow func(ctx context.Context, p tap.Process, share int) iter.Seq2[T, error],
) iter.Seq[item[T]] {
	return func(yield func(item[T]) bool) {
		// Without the deadline of ctx, which gRPC would send to the processes.
		within, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer context.AfterFunc(ctx, cancel)()
		m := &members[T]{Source: s, follow: follow, maxRPS: maxRPS, items: make(chan item[T]), all: map[string]*member{}}
		defer m.running.Wait()
		defer cancel()
		watched := make(chan struct{})
		m.running.Go(func() {
			defer close(watched)
			m.watch(within)
		})
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			var i item[T]
			select {
			case <-within.Done():
				return
			case <-watched: // because of an error, which was yielded
				return
			case <-ticker.C:
			case i = <-m.items:
			}
			switch {
			case i.pods != nil:
				m.update(within, i.pods)
			case i.ended:
				m.end(i.pod)
			}
			if !yield(i) || i.ended && m.ended() {
				return
			}
		}
	}
}

// send sends i to the consumer of the function each. It returns false if ctx has ended before.
func (m *members[T]) send(ctx context.Context, i item[T]) bool {
	select {
	case m.items <- i:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch sends the pods of the resources to the channel items after each change. It also sends an
// error for each pod without a proxy, and the errors of the API server.
func (m *members[T]) watch(ctx context.Context) {
	for pods, err := range m.Cluster.Watch(ctx, m.Resources) {
		if pods != nil {
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
	meshed := slices.DeleteFunc(slices.Clone(pods.Of), func(p Pod) bool { return !p.Meshed() })
	present := make(map[string]bool, len(meshed))
	for _, p := range meshed {
		present[p.key()] = true
		if m.all[p.key()] == nil {
			within, stop := context.WithCancel(ctx)
			m.all[p.key()] = &member{cancel: stop}
			share := int(top.PerProcess(m.maxRPS, len(meshed)))
			m.running.Go(func() {
				defer stop()
				m.one(ctx, within, p, share)
			})
		}
	}
	for key, one := range m.all {
		if !present[key] {
			one.cancel()
			delete(m.all, key)
		}
	}
}

// one follows a single pod, p, and sends its items to the consumer. ctx is the context of all
// pods, and the argument within is the context of this pod. The function returns when within
// or the sequence of p ends.
func (m *members[T]) one(ctx, within context.Context, p Pod, share int) {
	defer m.send(ctx, item[T]{pod: &p, ended: true})
	conn, err := m.Dial(within, p)
	if err != nil {
		m.send(ctx, item[T]{err: fmt.Errorf("%s: %w", m.Name(p), err)})
		return
	}
	defer conn.Close()
	for value, err := range m.follow(within, tap.Process{Name: m.Name(p), Conn: conn}, share) {
		i := item[T]{pod: &p, value: value}
		if err != nil {
			i = item[T]{err: err}
		}
		if within.Err() != nil || !m.send(ctx, i) {
			return
		}
	}
}

// end records that the sequence of the pod p has ended.
func (m *members[T]) end(p *Pod) {
	if one := m.all[p.key()]; one != nil {
		one.ended = true
	}
}

// ended reports whether the sequence of every pod has ended. If m has no pods, it returns false.
func (m *members[T]) ended() bool {
	for _, one := range m.all {
		if !one.ended {
			return false
		}
	}
	return len(m.all) > 0
}

// named returns e, an event of the pod p, with more labels. If the client or the endpoint of e
// is p or a pod in pods, the labels of that pod are added.
func named(e tap.Event, p *Pod, pods *Pods) tap.Event {
	from, to := lookUp(pods, e.Source), lookUp(pods, e.Destination)
	switch e.Direction {
	case tap.Inbound:
		to = p
	case tap.Outbound:
		from = p
	}
	e.SourceLabels, e.DestinationLabels = withLabels(e.SourceLabels, from), withLabels(e.DestinationLabels, to)
	return e
}

func lookUp(pods *Pods, addr netip.AddrPort) *Pod {
	if pods == nil || !addr.IsValid() {
		return nil
	}
	return pods.byIP[addr.Addr().Unmap().String()]
}

// withLabels returns a map with the given labels and the labels of the pod p. For a key in
// both, the value in the argument labels is used. withLabels does not change its arguments.
func withLabels(labels map[string]string, p *Pod) map[string]string {
	if p == nil {
		return labels
	}
	all := p.Labels()
	maps.Copy(all, labels)
	return all
}

// namedRows returns a copy of rows, the rows of the pod p, with names in place of addresses. A
// client or endpoint has a name if its address belongs to p or to a pod in pods.
func namedRows(rows *tappb.TopResponse, p *Pod, pods *Pods) *tappb.TopResponse {
	rows = proto.CloneOf(rows)
	name := func(addr string, own bool) string {
		if own {
			return p.Name
		}
		if pods != nil && pods.byIP[addr] != nil {
			return pods.byIP[addr].Name
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
