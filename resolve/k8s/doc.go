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
// informer that lists and watches. Objects are reduced to addresses, ports and labels at
// once.
//
// # Targets
//
//	web.prod:80                      a Service, and one of its ports by number
//	web.prod:http                    or by name
//	web.prod.svc:80
//	web.prod.svc.cluster.local:80    see the option WithClusterDomain
//	web:80                           with the option WithNamespace
//
// Case does not matter. Another form has the final error resolve.ErrUnresolvable.
//
// # Ports
//
// A number or a name selects an entry of spec.ports. The name of the entry selects the
// port of the EndpointSlices, which has the number to connect to. Names of ports in Pods
// do not matter, and digits are always a number. For a headless Service a number without
// an entry is the port to connect to. Only TCP counts. A port that the Service does not
// have is DoesNotExist, after an error that lists its ports. The appProtocol
// kubernetes.io/h2c makes endpoints resolve.H2.
//
// # Endpoints
//
// Endpoints are ready unless their condition is false. If none is ready, those that serve
// while they terminate are used, as in kube-proxy. An endpoint in two slices counts once.
// Only the first address of an endpoint counts.
//
// A Service with both address families has endpoints of its first family, or of the other
// one if that has no ready endpoint. So no backend counts twice.
//
// With [WithZone], if each ready endpoint has hints (hints.forZones) and one is for the
// caller's zone, only those for that zone are used. Hints for nodes are ignored.
//
// Labels are "namespace", "service", "pod", "node" and "zone", as far as they are known.
// Weights are not set.
//
// A missing Service is DoesNotExist; a Service without usable endpoints is Empty. So is
// one of type ExternalName, after an error. Slices of addressType FQDN and invalid
// addresses are ignored, with one error each. An update follows each such error, even if
// it is unchanged. If that update has no endpoints, resolve.ServeStale holds it back for
// Grace.
//
// # Outages
//
// A failed list or watch yields an error with advice, and the last set stays. It is
// repeated after 800 ms, doubled up to 30 s, plus up to as much at random
// ([WithBackoff]). A watch that lasted 10 s resets that. The first update after all
// watches have recovered has the whole set. A list that takes 30 s, and a watch that ends
// within a second without an event, have failed.
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
// client-go allows 5 requests a second unless rest.Config sets another limit, and each
// Service takes four at first. Set QPS and Burst to twice the number of targets, or QPS
// to -1.
package k8s
