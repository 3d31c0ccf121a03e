// Package k8s resolves names of Kubernetes Services by watching their EndpointSlices
// (discovery.k8s.io/v1) at the API server.
//
//	Resolve("web.prod:80")   ─┐                    ┌─ Reflector ─ Service web ────┐
//	Resolve("web.prod:http") ─┴▶ one watcher of ───┤                              ├─ API
//	                             each Service      └─ Reflector ─ EndpointSlices ─┘ server
//	    Replace, Empty,               │                labelled service-name=web
//	    DoesNotExist, error ◀─────────┘
//
// All streams of a Service share its watches. A Reflector is the part of client-go's
// informer that lists and watches objects. Only the addresses, ports and labels of an
// object are kept.
//
// # Targets
//
//	web.prod:80                      a Service, and one of its ports by number
//	web.prod:http                    or by name
//	web.prod.svc:80
//	web.prod.svc.cluster.local:80    see the option WithClusterDomain
//	web:80                           with the option WithNamespace
//
// Case does not matter. A target of another form returns the final error
// resolve.ErrUnresolvable.
//
// # Ports
//
// A number or a name selects an entry of spec.ports. The name of the entry selects a port
// of the EndpointSlices. The number of that port is used to connect. Names of ports in Pods
// are ignored. Digits always are a number. For a headless Service, a number without an
// entry is the port to connect to. Only TCP ports are used. A port that the Service does
// not have is DoesNotExist, after an error that lists its ports. Endpoints with the
// appProtocol kubernetes.io/h2c are resolve.H2.
//
// # Endpoints
//
// An endpoint is ready unless its condition ready is false. If none is ready, those that
// serve while they terminate are used, as in kube-proxy. An endpoint in two slices is
// yielded once. Only the first address of an endpoint is used.
//
// A Service with both address families has the endpoints of its first family, or of the
// other one if the first has no ready endpoints. Therefore no backend is yielded twice.
//
// With [WithZone], hints are followed if each ready endpoint has hints (hints.forZones) and
// at least one hint has the caller's zone. Then only the endpoints for that zone are used.
// Hints for nodes are ignored.
//
// The labels are "namespace", "service", "pod", "node" and "zone", if they are known.
// Weights are not set.
//
// A missing Service is DoesNotExist. A Service without usable endpoints is Empty, and so is
// a Service of type ExternalName, after an error. Slices of addressType FQDN and invalid
// addresses are ignored, with one error each. An update follows each such error, even if
// nothing has changed. If that update has no endpoints, resolve.ServeStale delays it by
// Grace.
//
// # Outages
//
// A failed list or watch yields an error with advice, and the last set stays. It is
// repeated after 800 ms, doubled up to 30 s, plus a random part of up to the same length
// ([WithBackoff]). A watch that lasted 10 s resets the backoff. The first update after all
// watches have recovered has the whole set. A list that takes 30 s has failed, and so has a
// watch that ends within a second without an event.
//
// # Permissions
//
// The account needs this Role in the namespaces of its targets:
//
//	rules:
//	- {apiGroups: [""], resources: [services], verbs: [list, watch]}
//	- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
//
// In a Pod:
//
//	config, err := rest.InClusterConfig() // or clientcmd, for a kubeconfig
//	config.QPS = -1
//	client, err := kubernetes.NewForConfig(config)
//	resolver := k8s.New(client, k8s.WithZone("eu-1a"))
//
// client-go allows 5 requests per second unless rest.Config sets another limit, and each
// Service needs four at its start. Set QPS and Burst to twice the number of targets, or QPS
// to -1.
package k8s
