package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// status returns the status that o, a route, an EgressNetwork or an HTTPLocalRateLimitPolicy,
// should have, together with the object as the API server stores it. stored is nil if o's spec is
// invalid or this controller has nothing to say about it.
func (c *cluster) status(o any) (s kubeobject.Status, stored *unstructured.Unstructured) {
	switch o := o.(type) {
	case *resource[route]:
		// A former parent may have left entries in a route's status, which must then be removed.
		if s = c.routeStatus(o); o.spec != nil && (len(s.Parents) > 0 || c.hasStatus(o)) {
			stored = o.Unstructured
		}
	case *resource[egressNetwork]:
		if o.spec != nil {
			s = c.egressStatus(o)
			stored = o.Unstructured
		}
	case *resource[rateLimitPolicy]:
		if o.spec != nil {
			s = c.rateLimitStatus(o)
			stored = o.Unstructured
		}
	}
	return s, stored
}

// routeStatus returns the conditions Accepted and ResolvedRefs for each of r's parents that is a
// Service, an EgressNetwork or a Server. Other parents are left to other controllers.
func (c *cluster) routeStatus(r *resource[route]) kubeobject.Status {
	if r.spec == nil {
		return kubeobject.Status{}
	}
	s := kubeobject.Status{Kind: r.GetKind(), Object: kubeobject.NameOf(r)}
	for _, ref := range r.spec.ParentRefs {
		kind, name := parentOf(r, &ref)
		if kind == "" {
			// Another controller serves this parent.
			continue
		}
		// Uses are not needed here, because changed finds the objects whose status depends on others.
		l := c.look()
		resolved := kubeobject.Is("ResolvedRefs", "")
		var err error
		if kind == "Server" {
			err = l.acceptInbound(r, name)
		} else {
			resolved = l.resolved(r)
			err = l.acceptOutbound(r, kind, name, ref.Port)
		}
		accepted := kubeobject.Is("Accepted", "")
		// A nil error, too, leaves the condition as it is.
		if problem, ok := errors.AsType[*rejection](err); ok {
			accepted = kubeobject.IsNot("Accepted", problem.reason, problem.message)
		}
		s.Parents = append(s.Parents, kubeobject.ParentStatus{
			ControllerName: c.settings.ControllerName, ParentRef: ref, Conditions: []kubeobject.Condition{accepted, resolved},
		})
	}
	return s
}

// rejection says why a parent does not accept a route. It becomes the reason and message when the
// route's condition Accepted is False.
type rejection struct{ reason, message string }

func (r *rejection) Error() string { return r.message }

// acceptOutbound returns a [rejection] unless the named Service or EgressNetwork accepts the
// route r. A nil port means all of the parent's ports. The parent accepts r if:
//   - it exists and has the port
//   - r is valid
//   - for r's clients, no route on the port takes precedence: one whose kind comes earlier in
//     [routeFields], or an older TCPRoute
func (l *lookup) acceptOutbound(r *resource[route], kind string, name kubeobject.Name, port *int) error {
	p := parent{kind: kind, Name: name, host: "192.0.2.1"} // stands for any address outside the cluster
	// EgressNetworks have no list of ports, so 0 stands for any of them.
	ports := []uint16{uint16(kubeobject.Or(port, 0))}
	if kind == "Service" {
		s := l.service(name)
		switch {
		case s == nil:
			return &rejection{"NoMatchingParent", "no Service " + name.String()}
		case port != nil && !slices.ContainsFunc(s.ports, func(p namedPort) bool { return int(p.port) == *port }):
			return &rejection{"NoMatchingParent", fmt.Sprintf("Service %s has no port %d", name, *port)}
		}
		p = l.parentService(s)
		// Reuse the slice for the ports of the Service that the route is attached to.
		ports = ports[:0]
		for _, served := range s.ports {
			if kubeobject.Or(port, int(served.port)) == int(served.port) {
				ports = append(ports, served.port)
			}
		}
	} else if get[resource[egressNetwork]](l.cluster, kind, name.Namespace, name.Name) == nil {
		return &rejection{"NoMatchingParent", "no EgressNetwork " + name.String()}
	}
	// routeFields is in order of precedence. Before r's own field, any route wins over r; after it, none does.
	for _, f := range routeFields {
		isKind := slices.Contains(f.kinds, kindOf(r.Unstructured))
		if isKind {
			translated, err := l.outboundRoute(r, p)
			if err == nil {
				err = l.checkOutbound(p, f.field, []object{translated})
			}
			if err != nil {
				return &rejection{"UnsupportedValue", err.Error()}
			}
			// Of several TCPRoutes on a port, only the oldest has an effect, which is checked below.
			if f.field != "tcpRoutes" {
				return nil
			}
		}
		for _, port := range ports { // routes in f take precedence over r
			// attached returns the oldest route first.
			if attached := l.attached(f.kinds, p, port, r.GetNamespace()); len(attached) > 0 && attached[0] != r {
				const text = "the %s has the %s %s, which takes precedence"
				message := fmt.Sprintf(text, kind, attached[0].GetKind(), kubeobject.NameOf(attached[0]))
				return &rejection{"RouteReasonConflicted", message}
			}
		}
	}
	return nil
}

// acceptInbound returns a [rejection] unless r is valid for the named Server, which must be in
// the same namespace as r.
func (l *lookup) acceptInbound(r *resource[route], name kubeobject.Name) error {
	s := get[resource[server]](l.cluster, "Server", name.Namespace, name.Name)
	// Kubernetes lets a route refer to a parent elsewhere, but linkerd requires the Server in the same namespace.
	if s == nil || s.spec == nil || name.Namespace != r.GetNamespace() {
		return &rejection{"NoMatchingParent", "no Server " + name.String() + " in the namespace of the route"}
	}
	for _, f := range routeFields {
		// Only the field for r's kind is relevant.
		if !slices.Contains(f.kinds, kindOf(r.Unstructured)) {
			continue
		}
		translated, err := l.inboundRoute(s, r)
		if err == nil {
			err = l.checkInbound(s, f.field, translated)
		}
		if err != nil {
			return &rejection{"UnsupportedValue", err.Error()}
		}
	}
	return nil
}

// resolved returns r's condition ResolvedRefs. It is True if each backend is a Service that
// declares the referenced port, or an EgressNetwork that is also a parent of r.
func (l *lookup) resolved(r *resource[route]) kubeobject.Condition {
	for _, rule := range r.spec.Rules {
		for _, b := range rule.BackendRefs {
			kind, name := b.Object(r.GetNamespace(), "", "Service")
			// The first case is the only EgressNetwork that is allowed. The second one rejects all other kinds.
			switch {
			case kind.Kind == "EgressNetwork" && *kind.Group == policyGroup &&
				slices.Contains(references(r, false), "EgressNetwork/"+name.String()): // parents only
			case *kind.Group != "" && *kind.Group != "core" || kind.Kind != "Service":
				return kubeobject.IsNot("ResolvedRefs", "InvalidKind", "want a Service, not "+kind.Kind)
			case b.Port == nil || !l.exists(l.dns(name), *b.Port):
				message := fmt.Sprintf("no Service %s with the port of the reference", name)
				return kubeobject.IsNot("ResolvedRefs", "BackendNotFound", message)
			}
		}
	}
	return kubeobject.Is("ResolvedRefs", "")
}

// rateLimitStatus returns p's condition Accepted. It is False if the targeted Server does not
// exist, or if an older valid policy targets it too.
func (c *cluster) rateLimitStatus(p *resource[rateLimitPolicy]) kubeobject.Status {
	accepted := kubeobject.Is("Accepted", "")
	kind, name := p.spec.TargetRef.Object(p.GetNamespace(), "", "") // no default kind
	s := get[resource[server]](c, "Server", name.Namespace, name.Name)
	// rateLimit returns the policy that is in effect. If that is not p, another one is older or p is invalid.
	switch l := c.look(); {
	case *kind.Group != policyGroup || kind.Kind != "Server" || s == nil || s.spec == nil:
		accepted = kubeobject.IsNot("Accepted", "NoMatchingTarget", "no Server "+name.String())
	case l.rateLimit(s)["name"] != p.GetName():
		const other = "another policy of the Server is older, or this one is invalid"
		accepted = kubeobject.IsNot("Accepted", "RateLimitReasonAlreadyExists", other)
	}
	return kubeobject.Status{Kind: p.GetKind(), Object: kubeobject.NameOf(p), Conditions: []kubeobject.Condition{accepted}}
}

// statusKey identifies an object whose status the controller writes. Its kind is a key of
// [resources].
type statusKey struct {
	kind string
	kubeobject.Name
}

// statusWriter writes the statuses of routes and some policies. Only the leader calls run, so
// that replicas do not overwrite each other. While run is active, changed collects the objects
// whose status may have changed.
type statusWriter struct {
	cluster *cluster
	client  dynamic.Interface
	wake    chan struct{} // signals that dirty is not empty

	mu    sync.Mutex
	dirty map[statusKey]struct{} // nil while run is not active
}

func newStatusWriter(c *cluster, client dynamic.Interface) *statusWriter {
	return &statusWriter{cluster: c, client: client, wake: make(chan struct{}, 1)}
}

// changed marks the objects whose status may depend on o. For a route, these are the route itself
// and those that share a parent with it, because one can take precedence over another. For a
// Service, an EgressNetwork or a Server, these are the routes that refer to it.
func (w *statusWriter) changed(o any) {
	// related contains values of the index byReference, under which routes are found.
	var related []string
	namespace := ""
	switch o := o.(type) {
	case *resource[route]:
		w.add(kindOf(o.Unstructured), o)
		related = references(o, false) // parents only
	case *service:
		related = []string{"Service/" + kubeobject.NameOf(o).String()}
	case *resource[egressNetwork]:
		w.add("EgressNetwork", o)
		related = []string{"EgressNetwork/" + kubeobject.NameOf(o).String()}
	case *resource[server]:
		related = []string{"Server/" + kubeobject.NameOf(o).String()}
		namespace = o.GetNamespace()
	case *resource[rateLimitPolicy]:
		namespace = o.GetNamespace()
	}
	// Routes of every kind may refer to the same object.
	for _, value := range related {
		for _, f := range routeFields {
			for _, kind := range f.kinds {
				w.addAll(kind, byReference, value)
			}
		}
	}
	if namespace != "" {
		w.addAll("HTTPLocalRateLimitPolicy", cache.NamespaceIndex, namespace)
	}
}

// addAll marks all objects of a kind that an index finds under value.
func (w *statusWriter) addAll(kind, index, value string) {
	items, _ := w.cluster.stores[kind].ByIndex(index, value)
	for _, item := range items {
		w.add(kind, item)
	}
}

// add marks o's status as outdated and wakes run, which writes it. Without an active run it does
// nothing, because the next run begins with all objects.
func (w *statusWriter) add(kind string, o any) {
	named, ok := o.(metav1.Object)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The next run begins with all objects.
	if w.dirty == nil {
		return
	}
	w.dirty[statusKey{kind, kubeobject.NameOf(named)}] = struct{}{}
	w.notify()
}

// notify wakes run. If the channel is full, run has been woken already, and will see all changes.
func (w *statusWriter) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// statusDelay is the pause between two rounds of writes, so that many changes to an object cause
// one write. After a round with an error, the pause is statusBackoff.
const (
	statusDelay   = 50 * time.Millisecond
	statusBackoff = 5 * time.Second
)

// run writes every object's status once, and then again whenever it may have changed, until ctx
// ends. A write that fails is logged and retried in the next round.
func (w *statusWriter) run(ctx context.Context) {
	// collect replaces the set of outdated objects by dirty, and returns the previous one.
	collect := func(dirty map[statusKey]struct{}) map[statusKey]struct{} {
		w.mu.Lock()
		defer w.mu.Unlock()
		previous := w.dirty
		w.dirty = dirty
		return previous
	}
	// From now on, add collects objects. After run, it ignores them.
	collect(make(map[statusKey]struct{}))
	defer collect(nil)
	// Everything may have changed before this candidate became the leader.
	for kind := range resources {
		for _, item := range w.cluster.stores[kind].List() {
			w.add(kind, item)
		}
	}
	for {
		delay := statusDelay
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		// Take everything that is outdated by now. What cannot be written is put back.
		for key := range collect(make(map[statusKey]struct{})) {
			err := w.write(ctx, key)
			if err == nil || ctx.Err() != nil {
				continue
			}
			w.cluster.log.Warn("kubernetes", "err", err)
			delay = statusBackoff
			w.mu.Lock()
			// dirty is not nil, because only run sets it to nil.
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

// write updates one object's status if it differs from the stored one. It skips objects that have
// been deleted or whose spec is invalid. If this controller serves none of a route's parents,
// only its old status entries are removed. A conflict is no error: the newer version of the
// object will arrive and be written then.
func (w *statusWriter) write(ctx context.Context, key statusKey) error {
	// item is nil if the object has been deleted, and stored is then nil too.
	item, _, _ := w.cluster.stores[key.kind].GetByKey(key.Name.String())
	s, stored := w.cluster.status(item)
	if stored == nil {
		return nil
	}
	// Merge returns nil if the status would not change, which saves a write.
	status, err := s.Merge(stored, w.cluster.settings.ControllerName, time.Now().UTC().Format(time.RFC3339))
	if err != nil || status == nil {
		return err
	}
	// Copy, because the store's objects are shared.
	u := stored.DeepCopy()
	u.Object["status"] = status
	_, err = w.client.Resource(resources[key.kind]).Namespace(key.Namespace).UpdateStatus(ctx, u, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of %s %s: %w", key.kind, key.Name, err)
	}
	return nil
}

// hasStatus reports whether r's status contains an entry by this controller, perhaps for a former
// parent.
func (c *cluster) hasStatus(r *resource[route]) bool {
	old, err := kubeobject.Decode[struct {
		Status kubeobject.Status `json:"status"`
	}](r.Unstructured)
	// A decoding error means that there is no entry that could be found.
	return err == nil && slices.ContainsFunc(old.Status.Parents, func(p kubeobject.ParentStatus) bool {
		return p.ControllerName == c.settings.ControllerName
	})
}

// Lease configures the leader election: the Kubernetes Lease, and how this candidate calls
// itself. Durations default to 15 s for Duration, 10 s for RenewDeadline and 2 s for RetryPeriod.
// See [leaderelection.LeaderElectionConfig].
type Lease struct {
	Namespace, Name string
	Identity        string // must be unique among the candidates

	Duration, RenewDeadline, RetryPeriod time.Duration
}

// run calls lead each time this candidate acquires the Lease. When it loses the Lease, lead's
// context ends, and lead should return soon. run then competes for the Lease again, until ctx
// ends.
func (l Lease) run(ctx context.Context, client kubernetes.Interface, lead func(context.Context)) error {
	for ctx.Err() == nil {
		ended := make(chan struct{})
		// A LeaderElector cannot be used twice, so each term gets its own.
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
			},
			LeaseDuration: cmp.Or(l.Duration, 15*time.Second),
			RenewDeadline: cmp.Or(l.RenewDeadline, 10*time.Second),
			RetryPeriod:   cmp.Or(l.RetryPeriod, 2*time.Second),
			// Another candidate need not wait for the Lease to expire.
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
		if ctx.Err() == nil { // Run returned because the Lease was lost, so lead is still running
			<-ended
		}
	}
	return nil
}
