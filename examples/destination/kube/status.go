package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// status returns the status of the route r. For each parent that is a Service or a Server,
// it has the conditions Accepted and ResolvedRefs. Other parents are left out.
func (c *cluster) status(r *resource[route]) kubeobject.Status {
	s := kubeobject.Status{Kind: r.GetKind(), Object: kubeobject.NameOf(r)}
	for _, ref := range r.spec.ParentRefs {
		kind, name := parentOf(r, &ref)
		if kind == "" {
			continue
		}
		l := c.look()
		resolved := kubeobject.Is("ResolvedRefs", "")
		var err error
		if kind == "Server" {
			err = l.acceptInbound(r, name)
		} else {
			resolved = l.resolved(r)
			err = l.acceptOutbound(r, name, ref.Port)
		}
		accepted := kubeobject.Is("Accepted", "")
		if problem, ok := errors.AsType[*rejection](err); ok {
			accepted = kubeobject.IsNot("Accepted", problem.reason, problem.message)
		}
		s.Parents = append(s.Parents, kubeobject.ParentStatus{
			ControllerName: c.settings.ControllerName, ParentRef: ref, Conditions: []kubeobject.Condition{accepted, resolved},
		})
	}
	return s
}

// rejection is the error for a route that a parent does not accept. The condition Accepted
// of the route is then False, with this reason and message.
type rejection struct{ reason, message string }

func (r *rejection) Error() string { return r.message }

// acceptOutbound returns nil if the Service with the given name accepts the route r, and
// otherwise a [rejection]. A nil port means all ports of the Service. The Service accepts r if:
//   - the Service is in the namespace of r and has the port
//   - r is valid
//   - the port has no route of a kind before that of r in [policyFields], because such a route
//     takes precedence
func (l *lookup) acceptOutbound(r *resource[route], name kubeobject.Name, port *int) error {
	s := l.service(name)
	switch {
	case name.Namespace != r.GetNamespace():
		return &rejection{"NoMatchingParent", "routes for a Service in another namespace are not supported"}
	case s == nil:
		return &rejection{"NoMatchingParent", "no Service " + name.String()}
	case port != nil && !slices.ContainsFunc(s.ports, func(p namedPort) bool { return int(p.port) == *port }):
		return &rejection{"NoMatchingParent", fmt.Sprintf("Service %s has no port %d", name, *port)}
	}
	for _, f := range policyFields {
		if f.kind == r.GetKind() {
			to, err := l.outboundRoute(r, s.Annotations)
			if err == nil {
				err = l.checkOutbound(f.field, []object{to})
			}
			if err != nil {
				return &rejection{"UnsupportedValue", err.Error()}
			}
			return nil
		}
		for _, p := range s.ports { // f takes precedence
			if kubeobject.Or(port, int(p.port)) == int(p.port) && len(l.attached(f.kind, s, p.port)) > 0 {
				return &rejection{"RouteReasonConflicted", fmt.Sprintf("the Service has a %s, which takes precedence", f.kind)}
			}
		}
	}
	return nil
}

// acceptInbound returns a [rejection] unless the route r is valid for the Server with the
// given name. The Server must be in the namespace of r.
func (l *lookup) acceptInbound(r *resource[route], name kubeobject.Name) error {
	s := get[resource[server]](l.cluster, "Server", name.Namespace, name.Name)
	if s == nil || s.spec == nil || name.Namespace != r.GetNamespace() {
		return &rejection{"NoMatchingParent", "no Server " + name.String() + " in the namespace of the route"}
	}
	for _, f := range policyFields {
		if f.kind != r.GetKind() {
			continue
		}
		to, err := l.inboundRoute(s, r)
		if err == nil {
			err = l.checkInbound(s, f.field, to)
		}
		if err != nil {
			return &rejection{"UnsupportedValue", err.Error()}
		}
	}
	return nil
}

// resolved returns the condition ResolvedRefs of the route r. It is True if each backend is
// a Service that has the port of the reference.
func (l *lookup) resolved(r *resource[route]) kubeobject.Condition {
	for _, rule := range r.spec.Rules {
		for _, b := range rule.BackendRefs {
			kind, name := b.Object(r.GetNamespace(), "", "Service")
			switch {
			case *kind.Group != "" || kind.Kind != "Service":
				return kubeobject.IsNot("ResolvedRefs", "InvalidKind", "want a Service, not "+kind.Kind)
			case b.Port == nil || !l.exists(l.dns(name), strconv.Itoa(int(*b.Port))):
				message := fmt.Sprintf("no Service %s with the port of the reference", name)
				return kubeobject.IsNot("ResolvedRefs", "BackendNotFound", message)
			}
		}
	}
	return kubeobject.Is("ResolvedRefs", "")
}

// routeKey identifies a route.
type routeKey struct {
	kind string
	kubeobject.Name
}

// statusWriter writes the status of routes. The method run writes the statuses. Only the leader
// calls run. While run runs, the method changed collects the routes with a status that may have
// changed.
type statusWriter struct {
	cluster *cluster
	client  dynamic.Interface
	wake    chan struct{} // has a value if dirty is not empty

	mu    sync.Mutex
	dirty map[routeKey]struct{} // nil while run does not run
}

func newStatusWriter(c *cluster, client dynamic.Interface) *statusWriter {
	return &statusWriter{cluster: c, client: client, wake: make(chan struct{}, 1)}
}

// changed adds routes to w after a change of the object o, because their status may depend
// on o. If o is a route, changed adds o and the routes that refer to a parent of o. If o is
// a Service or a Server, it adds the routes that refer to o.
func (w *statusWriter) changed(o any) {
	var related []string
	switch o := o.(type) {
	case *resource[route]:
		w.add(o)
		related = references(o, false)
	case *service:
		related = []string{"Service/" + kubeobject.NameOf(o).String()}
	case *resource[server]:
		related = []string{"Server/" + kubeobject.NameOf(o).String()}
	}
	for _, value := range related {
		for _, f := range policyFields {
			items, _ := w.cluster.stores[f.kind].ByIndex(byReference, value)
			for _, item := range items {
				w.add(item)
			}
		}
	}
}

// add marks the status of the route o as outdated, and wakes the method run, which writes it. It
// does nothing while run does not run. It ignores an object that is not a route, and a route that
// could not be decoded.
func (w *statusWriter) add(o any) {
	r, ok := o.(*resource[route])
	if !ok || r.spec == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dirty == nil {
		return
	}
	w.dirty[routeKey{r.GetKind(), kubeobject.NameOf(r)}] = struct{}{}
	w.notify()
}

func (w *statusWriter) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// statusDelay is the time between two rounds of writes. After a round with an error, statusBackoff
// is used instead. The routes that change during this time are written in the next round.
const (
	statusDelay   = 50 * time.Millisecond
	statusBackoff = 5 * time.Second
)

// run writes the status of all routes at the start, and then that of each changed route,
// until ctx ends. It logs a failed write and repeats it in the next round.
func (w *statusWriter) run(ctx context.Context) {
	collect := func(dirty map[routeKey]struct{}) map[routeKey]struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		before := w.dirty
		w.dirty = dirty
		return before
	}
	collect(make(map[routeKey]struct{}))
	defer collect(nil)
	for _, f := range policyFields {
		for _, item := range w.cluster.stores[f.kind].List() {
			w.add(item)
		}
	}
	for {
		delay := statusDelay
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for key := range collect(make(map[routeKey]struct{})) {
			err := w.write(ctx, key)
			if err == nil || ctx.Err() != nil {
				continue
			}
			w.cluster.log.Warn("kubernetes", "err", err)
			delay = statusBackoff
			w.mu.Lock()
			w.dirty[key] = struct{}{}
			w.notify()
			w.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// write writes the status of one route if it differs from the status in the cluster. It
// does nothing if the route has been deleted or has an invalid spec. For a route without a
// parent of this controller, it only removes an old status. A conflict is not an error,
// because the newer version of the route is written later.
func (w *statusWriter) write(ctx context.Context, key routeKey) error {
	r := get[resource[route]](w.cluster, key.kind, key.Namespace, key.Name.Name)
	if r == nil || r.spec == nil {
		return nil
	}
	s := w.cluster.status(r)
	if len(s.Parents) == 0 && !w.cluster.hasStatus(r) {
		return nil
	}
	status, err := s.Merge(r.Unstructured, w.cluster.settings.ControllerName, time.Now().UTC().Format(time.RFC3339))
	if err != nil || status == nil {
		return err
	}
	u := r.DeepCopy()
	u.Object["status"] = status
	_, err = w.client.Resource(resources[key.kind]).Namespace(key.Namespace).UpdateStatus(ctx, u, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of %s %s: %w", key.kind, key.Name, err)
	}
	return nil
}

// hasStatus reports whether the status of r has an entry of this controller. The entry may
// be for a former parent of r.
func (c *cluster) hasStatus(r *resource[route]) bool {
	old, err := kubeobject.Decode[struct {
		Status kubeobject.Status `json:"status"`
	}](r.Unstructured)
	return err == nil && slices.ContainsFunc(old.Status.Parents, func(p kubeobject.ParentStatus) bool {
		return p.ControllerName == c.settings.ControllerName
	})
}

// Lease configures the leader election: the Kubernetes Lease and the identity of this
// candidate. A duration of 0 means the default, which is 15 s for Duration, 10 s for
// RenewDeadline and 2 s for RetryPeriod. See [leaderelection.LeaderElectionConfig].
type Lease struct {
	Namespace, Name string
	Identity        string // of this candidate; different for each candidate

	Duration, RenewDeadline, RetryPeriod time.Duration
}

// run calls lead each time the candidate gets the Lease. When the candidate loses the
// Lease, the context of lead ends, and lead must return. run then tries to get the Lease
// again, until ctx ends.
func (l Lease) run(ctx context.Context, client kubernetes.Interface, lead func(context.Context)) error {
	for ctx.Err() == nil {
		ended := make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
			},
			LeaseDuration:   cmp.Or(l.Duration, 15*time.Second),
			RenewDeadline:   cmp.Or(l.RenewDeadline, 10*time.Second),
			RetryPeriod:     cmp.Or(l.RetryPeriod, 2*time.Second),
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { defer close(ended); lead(ctx) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
		if ctx.Err() == nil { // otherwise the candidate may not have led
			<-ended
		}
	}
	return nil
}
