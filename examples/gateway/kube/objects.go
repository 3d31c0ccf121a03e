package kube

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// gatewayGroup is the Gateway API's group.
const gatewayGroup = "gateway.networking.k8s.io"

// Objects are the objects in a cluster that [Translate] uses. The zero value is empty.
type Objects struct {
	classes        []GatewayClass
	gateways       []Gateway
	routes         []Route
	grants         []ReferenceGrant
	ingressClasses []networkingv1.IngressClass
	ingresses      []networkingv1.Ingress
	services       map[ObjectName]*corev1.Service
	secrets        map[ObjectName]*corev1.Secret
	namespaces     map[string]map[string]string // labels by name
}

// Types from package kubeobject.
type (
	ObjectName      = kubeobject.Name
	GroupKind       = kubeobject.GroupKind
	ObjectReference = kubeobject.Reference
	ParentReference = kubeobject.ParentReference
	Address         = kubeobject.Address
	Status          = kubeobject.Status
	ListenerStatus  = kubeobject.ListenerStatus
	ParentStatus    = kubeobject.ParentStatus
	LoadBalancer    = kubeobject.LoadBalancer
	IngressAddress  = kubeobject.IngressAddress
	Condition       = kubeobject.Condition
)

func nameOf(o metav1.Object) ObjectName { return kubeobject.NameOf(o) }

func is(name, reason string) Condition { return kubeobject.Is(name, reason) }

func isNot(name, reason, message string) Condition { return kubeobject.IsNot(name, reason, message) }

func or[T any](p *T, def T) T { return kubeobject.Or(p, def) }

// kinds maps each kind that the gateway reads to its API resource.
var kinds = map[string]schema.GroupVersionResource{ //nolint:gochecknoglobals // constant
	"GatewayClass":   {Group: gatewayGroup, Version: "v1", Resource: "gatewayclasses"},
	"Gateway":        {Group: gatewayGroup, Version: "v1", Resource: "gateways"},
	"HTTPRoute":      {Group: gatewayGroup, Version: "v1", Resource: "httproutes"},
	"GRPCRoute":      {Group: gatewayGroup, Version: "v1", Resource: "grpcroutes"},
	"TLSRoute":       {Group: gatewayGroup, Version: "v1", Resource: "tlsroutes"},
	"ReferenceGrant": {Group: gatewayGroup, Version: "v1beta1", Resource: "referencegrants"},
	"IngressClass":   {Group: "networking.k8s.io", Version: "v1", Resource: "ingressclasses"},
	"Ingress":        {Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	"Service":        {Version: "v1", Resource: "services"},
	"Secret":         {Version: "v1", Resource: "secrets"},
	"Namespace":      {Version: "v1", Resource: "namespaces"},
}

// Add adds the object u, unless its kind does not matter to [Translate]. It returns an error if u
// cannot be decoded.
func (o *Objects) Add(u *unstructured.Unstructured) error {
	switch u.GetKind() {
	case "GatewayClass":
		return appendObject(&o.classes, u)
	case "Gateway":
		return appendObject(&o.gateways, u)
	case "HTTPRoute", "GRPCRoute", "TLSRoute":
		return appendObject(&o.routes, u)
	case "ReferenceGrant":
		return appendObject(&o.grants, u)
	case "IngressClass":
		return appendObject(&o.ingressClasses, u)
	case "Ingress":
		return appendObject(&o.ingresses, u)
	case "Service":
		return setObject(&o.services, u)
	case "Secret":
		return setObject(&o.secrets, u)
	case "Namespace":
		if o.namespaces == nil {
			o.namespaces = make(map[string]map[string]string)
		}
		o.namespaces[u.GetName()] = u.GetLabels()
	}
	return nil
}

func appendObject[T any](list *[]T, u *unstructured.Unstructured) error {
	v, err := kubeobject.Decode[T](u)
	if err == nil {
		*list = append(*list, *v)
	}
	return err
}

func setObject[T any](objects *map[ObjectName]*T, u *unstructured.Unstructured) error {
	v, err := kubeobject.Decode[T](u)
	if err != nil {
		return err
	}
	if *objects == nil {
		*objects = make(map[ObjectName]*T)
	}
	(*objects)[nameOf(u)] = v
	return nil
}

// The types below mirror the Gateway API, reduced to the fields that the gateway uses. See
// sigs.k8s.io/gateway-api for their documentation.
type (
	// GatewayClass names the controller for its Gateways.
	GatewayClass struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ControllerName string          `json:"controllerName"`
			ParametersRef  json.RawMessage `json:"parametersRef"`
		} `json:"spec"`
	}

	// Gateway is a set of listeners.
	Gateway struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			GatewayClassName string          `json:"gatewayClassName"`
			Listeners        []Listener      `json:"listeners"`
			Addresses        []Address       `json:"addresses"`
			TLS              json.RawMessage `json:"tls"`
		} `json:"spec"`
	}

	// Listener is a Gateway's listener: a port with a protocol and optionally a host name.
	Listener struct {
		Name     string `json:"name"`
		Hostname string `json:"hostname"`
		Port     int    `json:"port"`
		Protocol string `json:"protocol"`
		TLS      *struct {
			Mode               string            `json:"mode"`
			CertificateRefs    []ObjectReference `json:"certificateRefs"`
			FrontendValidation json.RawMessage   `json:"frontendValidation"`
		} `json:"tls"`
		AllowedRoutes struct {
			Namespaces struct {
				From     string                `json:"from"`
				Selector *metav1.LabelSelector `json:"selector"`
			} `json:"namespaces"`
			Kinds []GroupKind `json:"kinds"`
		} `json:"allowedRoutes"`
	}

	// BackendReference refers to a Service.
	BackendReference struct {
		ObjectReference
		Port    *int              `json:"port"`
		Weight  *int              `json:"weight"`
		Filters []json.RawMessage `json:"filters"`
	}

	// Route is an HTTPRoute, a GRPCRoute or a TLSRoute, whose rules only have BackendRefs.
	Route struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ParentRefs []ParentReference `json:"parentRefs"`
			Hostnames  []string          `json:"hostnames"`
			Rules      []Rule            `json:"rules"`
		} `json:"spec"`
		Status Status `json:"status"`
	}

	// Rule is one rule of a Route. Without Matches, it applies to all requests.
	Rule struct {
		Matches            []RouteMatch       `json:"matches"`
		Filters            []Filter           `json:"filters"`
		BackendRefs        []BackendReference `json:"backendRefs"`
		SessionPersistence json.RawMessage    `json:"sessionPersistence"`
		Timeouts           struct {
			Request        string `json:"request"`
			BackendRequest string `json:"backendRequest"`
		} `json:"timeouts"`
		Retry *struct {
			Codes    []int `json:"codes"`
			Attempts *int  `json:"attempts"`
		} `json:"retry"`
	}

	// RouteMatch is a condition on requests. A request must match all of its fields.
	RouteMatch struct {
		Path        *ValueMatch  `json:"path"`
		Method      MethodMatch  `json:"method"`
		Headers     []ValueMatch `json:"headers"`
		QueryParams []ValueMatch `json:"queryParams"`
	}

	// ValueMatch is a condition on a path, a header field or a query parameter.
	ValueMatch struct {
		Type  string  `json:"type"`
		Name  string  `json:"name"`
		Value *string `json:"value"`
	}

	// MethodMatch is a condition on an HTTP request's method, or on a gRPC call's service and
	// method.
	MethodMatch struct {
		HTTP    string `json:"-"`
		Type    string `json:"type"`
		Service string `json:"service"`
		Method  string `json:"method"`
	}

	// Filter changes requests or responses.
	Filter struct {
		Type                   string           `json:"type"`
		RequestHeaderModifier  *HeaderModifier  `json:"requestHeaderModifier"`
		ResponseHeaderModifier *HeaderModifier  `json:"responseHeaderModifier"`
		RequestRedirect        *RequestRedirect `json:"requestRedirect"`
		URLRewrite             *URLRewrite      `json:"urlRewrite"`
		RequestMirror          *RequestMirror   `json:"requestMirror"`
		CORS                   *CORS            `json:"cors"`
	}

	// HeaderModifier changes header fields.
	HeaderModifier struct {
		Set    []NameValue `json:"set"`
		Add    []NameValue `json:"add"`
		Remove []string    `json:"remove"`
	}

	// NameValue is a header field.
	NameValue struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}

	// RequestRedirect responds with a redirect.
	RequestRedirect struct {
		Scheme     string        `json:"scheme"`
		Hostname   string        `json:"hostname"`
		Path       *PathModifier `json:"path"`
		Port       int           `json:"port"`
		StatusCode int           `json:"statusCode"`
	}

	// URLRewrite changes the host or the path of a request.
	URLRewrite struct {
		Hostname string        `json:"hostname"`
		Path     *PathModifier `json:"path"`
	}

	// PathModifier replaces a path or its prefix.
	PathModifier struct {
		ReplaceFullPath    *string `json:"replaceFullPath"`
		ReplacePrefixMatch *string `json:"replacePrefixMatch"`
	}

	// RequestMirror sends copies of requests to a Service.
	RequestMirror struct {
		BackendRef BackendReference `json:"backendRef"`
		Percent    *int             `json:"percent"`
		Fraction   *struct {
			Numerator   int  `json:"numerator"`
			Denominator *int `json:"denominator"`
		} `json:"fraction"`
	}

	// CORS lets web pages from other origins send requests.
	CORS struct {
		AllowOrigins     []string `json:"allowOrigins"`
		AllowCredentials bool     `json:"allowCredentials"`
		AllowMethods     []string `json:"allowMethods"`
		AllowHeaders     []string `json:"allowHeaders"`
		ExposeHeaders    []string `json:"exposeHeaders"`
		MaxAge           *int     `json:"maxAge"`
	}

	// ReferenceGrant permits references from other namespaces to objects in its own.
	ReferenceGrant struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			From []struct {
				Group     string `json:"group"`
				Kind      string `json:"kind"`
				Namespace string `json:"namespace"`
			} `json:"from"`
			To []struct {
				Group string `json:"group"`
				Kind  string `json:"kind"`
				Name  string `json:"name"`
			} `json:"to"`
		} `json:"spec"`
	}
)

// UnmarshalJSON decodes an HTTPRoute's method, which is a string, or a GRPCRoute's, which is an
// object.
func (m *MethodMatch) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		return json.Unmarshal(text, &m.HTTP)
	}
	type plain MethodMatch
	return json.Unmarshal(text, (*plain)(m))
}

// permits reports whether an object of the given kind and namespace may refer to target. Within a
// namespace it always may. Otherwise a ReferenceGrant in target's namespace must permit it.
func (o *Objects) permits(fromKind, fromNamespace, toKind string, target ObjectName) bool {
	if fromNamespace == target.Namespace {
		return true
	}
	for _, g := range o.grants {
		if g.Namespace != target.Namespace {
			continue
		}
		fromMatches := false
		toMatches := false
		for _, f := range g.Spec.From {
			fromMatches = fromMatches || f.Group == gatewayGroup && f.Kind == fromKind && f.Namespace == fromNamespace
		}
		for _, t := range g.Spec.To {
			toMatches = toMatches || t.Group == "" && t.Kind == toKind && (t.Name == "" || t.Name == target.Name)
		}
		if fromMatches && toMatches {
			return true
		}
	}
	return false
}
