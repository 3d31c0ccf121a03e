// Package k8s resolves names of Kubernetes Services by watching their
// EndpointSlices (discovery.k8s.io/v1) at the API server.
//
//	Resolve("web.prod:80")   ─┐                    ┌─ Reflector ─ Service web ────┐
//	Resolve("web.prod:http") ─┴▶ one watcher of ───┤                              ├─ API
//	                             each Service      └─ Reflector ─ EndpointSlices ─┘ server
//	    Replace, Empty,               │                labelled service-name=web
//	    DoesNotExist, error ◀─────────┘
//
// The watches of a Service are shared by all of its streams and end with the
// last one. A Reflector is the half of client-go's informer that lists,
// watches and begins anew; what it reads is boiled down to addresses, ports and
// labels at once, and the objects are let go. Two watches of one Service each
// are less than one of a whole namespace, unless most of its Services are
// resolved; and they need no rights on the others.
//
// # Targets
//
//	web.prod:80                      a Service, and one of its ports by number
//	web.prod:http                    or by name
//	web.prod.svc:80
//	web.prod.svc.cluster.local:80    see the option WithClusterDomain
//	web:80                           with the option Namespace
//
// Capitals do not matter. Anything else is final: resolve.ErrUnresolvable.
//
// # Ports
//
// A number is a port of the Service: the entry of spec.ports with that number
// says by its name which port of the EndpointSlices is meant, and there is the
// number to connect to, its targetPort. A name is the name of such an entry; what
// Pods call their ports does not matter. Digits are always a number. Where a
// headless Service has no such entry, a number is the one to connect to. TCP
// alone counts. A slice's port without a number stands for the Service's. A
// port that the Service does not have is DoesNotExist, after an error that lists
// those it has. The appProtocol kubernetes.io/h2c makes endpoints resolve.H2.
//
// # Which endpoints
//
// Those that are ready, which is also what is not said to be unready, and what
// comes by publishNotReadyAddresses. If there is none, those that serve while
// they terminate, as kube-proxy does it. An endpoint that is in two slices, for
// it is being moved, counts once, and is ready if it is so in one of them. Of
// several addresses in one endpoint the first counts.
//
// A Service with addresses of both families gives those of one, so that no
// backend counts twice: the one that is preferred ([WithPreferIPv4], [WithPreferIPv6]),
// or else the Service's first; the other one if that has no ready endpoint.
//
// With [WithZone], if each ready endpoint has hints (hints.forZones) and one is for
// the caller's zone, those for that zone are all there is; else all are. Hints
// for nodes are passed over.
//
// Labels are "namespace", "service", "pod", "node" and "zone", of what is known.
// Weights are not set.
//
// A Service that is not there is DoesNotExist; one without endpoints of use is
// Empty. So is one of type ExternalName, after an error that says so. Slices of
// addressType FQDN are passed over with an error, once, and so are addresses that
// are none. An update follows each such error, with what is of use, even if that
// is as it was: it says that nothing is lost.
//
// To resolve.ServeStale, such an update is one that follows an error. Where it
// says that there is nothing, as of a port that went or a Service that becomes
// an ExternalName, it is held back for Grace, though it is not in doubt.
//
// # Outages
//
// A list or a watch that fails is an error that says, as far as it is known,
// what to do about it; what was known stays in force. It is tried again after
// 800 ms, then twice as long up to 30 s, with up to as much again at random
// ([WithBackoff]); a watch of 10 s makes that start anew. The first update once all
// watches stand again says the whole set, even if that is as it was. A list that
// takes 30 s has failed, and so has a watch that ends within a second and told
// of nothing. Nothing of this is logged here; client-go itself traces a list that
// takes more than 10 s to klog.
//
// # What it needs
//
// An account with this Role in the namespaces of its targets:
//
//	rules:
//	- {apiGroups: [""], resources: [services], verbs: [list, watch]}
//	- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
//
// In a Pod, the client comes from there:
//
//	config, err := rest.InClusterConfig() // or clientcmd, for a kubeconfig
//	config.QPS = -1
//	client, err := kubernetes.NewForConfig(config)
//	resolver := k8s.New(client, k8s.WithZone("eu-1a"))
//
// A client of client-go's lets 5 requests a second through, unless its
// rest.Config says otherwise; each Service takes four to begin with. Set QPS and
// Burst to twice the number of targets, or QPS to -1.
package k8s
