// Package k8s resolves Kubernetes Services by watching their EndpointSlices (discovery.k8s.io/v1)
// at the API server. The Services need not be headless: unlike a DNS name, a target in this
// package resolves to all Pods, and does so before DNS has changed.
//
//	Resolve("web.prod:80")   ─┐                    ┌─ Reflector ─ Service web ────┐
//	Resolve("web.prod:http") ─┴▶ one watcher of ───┤                              ├─ API
//	                             each Service      └─ Reflector ─ EndpointSlices ─┘ server
//	    Replace, Empty,               │                labelled service-name=web
//	    DoesNotExist, error ◀─────────┘
//
// All streams for a Service share its watches. A Reflector is the part of client-go's informer
// that lists and watches objects. Only an object's addresses, ports and labels are kept.
//
// # Targets
//
//	web.prod:80                      a Service, and one of its ports by number
//	web.prod:http                    or by name
//	web.prod.svc:80
//	web.prod.svc.cluster.local:80    see the option WithClusterDomain
//	web:80                           with the option WithNamespace
//
// Case does not matter. Any other kind of target returns the final error resolve.ErrUnresolvable.
//
// # Ports
//
// A number or a name selects an entry in spec.ports. The entry's name selects a port in the
// EndpointSlices, whose number is used to connect. Port names in Pods are ignored. Digits always
// are a number. For a headless Service, a number without an entry is the port to connect to. Only
// TCP ports are used. A port that the Service does not have is DoesNotExist, after an error that
// lists its ports. Endpoints with the appProtocol kubernetes.io/h2c are resolve.H2.
//
// # Endpoints
//
// An endpoint is ready unless its condition ready is false. If none is ready, those that serve
// while they terminate are used, as in kube-proxy. An endpoint in two slices is yielded once.
// Only an endpoint's first address is used.
//
// A Service with both address families resolves to the endpoints in its first family, or in the
// other one if no endpoint in the first is ready. Therefore no backend is yielded twice.
//
// With [WithZone], hints are followed if each ready endpoint carries hints (hints.forZones) and
// at least one of them names the caller's zone. Then the endpoints for that zone get Priority 0,
// and all others Priority 1. kube-proxy and linkerd use only the endpoints for the zone, even
// while the caller cannot reach them. Hints for nodes are ignored.
//
// The labels are "namespace", "service", "pod", "node" and "zone", if they are known. The
// Locality is the zone. Weights are not set.
//
// A missing Service is DoesNotExist. A Service without usable endpoints is Empty, and so is a
// Service of type ExternalName, after an error. Slices of addressType FQDN and invalid addresses
// are ignored, with one error each. An update follows each such error, even if nothing has
// changed. If that update contains no endpoints, resolve.ServeStale delays it by Grace.
//
// # Outages
//
// A failed list or watch yields an error with advice, and the last set stays. It is repeated
// after 800 ms, doubled up to 30 s, plus a random part of up to the same length ([WithBackoff]).
// A watch that lasted 10 s resets the backoff. The first update after all watches have recovered
// is the whole set. A list that takes 30 s has failed, and so has a watch that ends within a
// second without an event.
//
// # Permissions
//
// The account needs this Role in its targets' namespaces:
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
// client-go allows 5 requests per second unless rest.Config sets another limit, and each Service
// needs four at its start. You should set QPS and Burst to twice the number of targets, or QPS to
// -1.
package k8s
