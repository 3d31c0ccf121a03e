package controller

import (
	"net/netip"
	"time"

	"github.com/gotower/gotower/internal/yamlfile"
)

// The structs below define the file format, with tags for [yamlfile.Decoder]. [Config] and the
// types in it are part of the format.

// fileYAML is the whole configuration file. The decoder in package yamlfile fills in these types: a field At is
// where the value is in the file, for errors, and the tags give limits and defaults.
type fileYAML struct {
	Destinations    map[string]destinationYAML `yaml:"destinations" is:"required"`
	Servers         []serverYAML               `yaml:"servers"`
	DefaultPolicy   AccessPolicy               `yaml:"defaultInboundPolicy" enum:"deny,all-unauthenticated,all-authenticated,all-tls-unauthenticated,cluster-unauthenticated,cluster-authenticated,audit"` //nolint:lll // a tag
	ClusterNetworks []netip.Prefix             `yaml:"clusterNetworks"`
}

// destinationYAML is a Destination as the file writes it: with exists instead of Absent, and the policy as YAML.
type destinationYAML struct {
	Destination

	Exists bool        `yaml:"exists" default:"true"`
	Policy *policyYAML `yaml:"policy"`
}

// classYAML is a [ResponseClass].
type classYAML struct {
	Status  statusRange `yaml:"status" is:"required"`
	Failure bool        `yaml:"is_failure"`
}

// statusRange is a status, or a range such as 500-599.
type statusRange struct{ Min, Max uint32 }

// The structs below define policies: a destination's policy field, and the list servers. Fields
// are named as in the Gateway API and in linkerd's policy resources.

// policyYAML is a destination's outbound policy.
type policyYAML struct {
	At             yamlfile.Value
	ProxyProtocol  string                           `yaml:"proxyProtocol" enum:"unknown,HTTP/1,HTTP/2,gRPC,opaque,TLS" default:"unknown"`
	HTTPRoutes     []policyRouteYAML[httpMatchYAML] `yaml:"httpRoutes"`
	GRPCRoutes     []policyRouteYAML[grpcMatchYAML] `yaml:"grpcRoutes"`
	TLSRoutes      []streamRouteYAML                `yaml:"tlsRoutes"`
	TCPRoutes      []streamRouteYAML                `yaml:"tcpRoutes"`
	FailureAccrual *accrualYAML                     `yaml:"failureAccrual"`
	LoadBiaser     *biaserYAML                      `yaml:"loadBiaser"`
	TrafficPolicy  *string                          `yaml:"trafficPolicy" enum:"Allow,Deny"` // only for IP addresses
}

// policyRouteYAML is an HTTPRoute or a GRPCRoute. M is the type of its conditions: httpMatchYAML
// or grpcMatchYAML.
type policyRouteYAML[M any] struct {
	At             yamlfile.Value
	Name           string              `yaml:"name" is:"required"`
	Hostnames      []string            `yaml:"hostnames"`
	Rules          []policyRuleYAML[M] `yaml:"rules"`
	Authorizations []authorizationYAML `yaml:"authorizationPolicies"` // only in servers
}

// policyRuleYAML is a rule of an HTTPRoute or a GRPCRoute: what to do with requests that meet one of the
// conditions in Matches. M is the type of these conditions, as in policyRouteYAML.
type policyRuleYAML[M any] struct {
	At          yamlfile.Value
	Matches     []M           `yaml:"matches"`
	Filters     []filterYAML  `yaml:"filters"`
	BackendRefs []backendYAML `yaml:"backendRefs"` // this and the fields below: not in inbound policies
	Timeouts    *timeoutsYAML `yaml:"timeouts"`
	Retry       *retryYAML    `yaml:"retry"`
}

// streamRouteYAML is a TLSRoute or a TCPRoute. A TCPRoute must not list hostnames.
type streamRouteYAML struct {
	At        yamlfile.Value
	Name      string           `yaml:"name" is:"required"`
	Hostnames []string         `yaml:"hostnames"`
	Rules     []streamRuleYAML `yaml:"rules"`
}

// streamRuleYAML is the rule of a TLSRoute or a TCPRoute.
type streamRuleYAML struct {
	At          yamlfile.Value
	BackendRefs []backendYAML `yaml:"backendRefs"`
}

// httpMatchYAML is a condition on an HTTP request. All fields that are set must match.
type httpMatchYAML struct {
	At          yamlfile.Value
	Path        *pathYAML        `yaml:"path"`
	Method      string           `yaml:"method"`
	Headers     []namedValueYAML `yaml:"headers"`
	QueryParams []namedValueYAML `yaml:"queryParams"`
}

// grpcMatchYAML is a condition on a gRPC call. All fields that are set must match.
type grpcMatchYAML struct {
	At      yamlfile.Value
	Method  *grpcMethodYAML  `yaml:"method"`
	Headers []namedValueYAML `yaml:"headers"`
}

// grpcMethodYAML is a condition on a call's service and method. An empty field matches any.
type grpcMethodYAML struct {
	At      yamlfile.Value
	Service string `yaml:"service"`
	Method  string `yaml:"method"`
}

// pathYAML is a condition on a request's path.
type pathYAML struct {
	At    yamlfile.Value
	Type  string `yaml:"type" enum:"PathPrefix,Exact,RegularExpression" default:"PathPrefix"`
	Value string `yaml:"value" default:"/"`
}

// namedValueYAML is a condition on a header or a query parameter.
type namedValueYAML struct {
	At    yamlfile.Value
	Type  string `yaml:"type" enum:"Exact,RegularExpression" default:"Exact"`
	Name  string `yaml:"name" is:"required"`
	Value string `yaml:"value"`
}

// filterYAML is a filter of a rule or backend. Type selects which of the other fields is used, as in the Gateway
// API.
type filterYAML struct {
	At       yamlfile.Value
	Type     string        `yaml:"type" is:"required"`
	Request  *modifierYAML `yaml:"requestHeaderModifier"`
	Response *modifierYAML `yaml:"responseHeaderModifier"`
	Redirect *redirectYAML `yaml:"requestRedirect"`
}

// modifierYAML changes the headers of requests or responses.
type modifierYAML struct {
	At     yamlfile.Value
	Set    []headerYAML `yaml:"set"`
	Add    []headerYAML `yaml:"add"`
	Remove []string     `yaml:"remove"`
}

// headerYAML is a header that a filter sets or adds.
type headerYAML struct {
	At    yamlfile.Value
	Name  string `yaml:"name" is:"required"`
	Value string `yaml:"value"`
}

// redirectYAML makes the proxy answer with a redirect. Fields that are not set keep the request's value.
type redirectYAML struct {
	At       yamlfile.Value
	Scheme   string            `yaml:"scheme" enum:"http,https"`
	Hostname *string           `yaml:"hostname"`
	Port     uint16            `yaml:"port" min:"1"`
	Status   uint32            `yaml:"statusCode" default:"302"`
	Path     *pathModifierYAML `yaml:"path"`
}

// pathModifierYAML replaces a redirect's path, or only the prefix that the rule matched. Type selects the field.
type pathModifierYAML struct {
	At     yamlfile.Value
	Type   string `yaml:"type" enum:"ReplaceFullPath,ReplacePrefixMatch" default:"ReplaceFullPath"`
	Full   string `yaml:"replaceFullPath"`
	Prefix string `yaml:"replacePrefixMatch"`
}

// backendYAML is a destination to which a rule sends a share of its traffic.
type backendYAML struct {
	At      yamlfile.Value
	Name    string       `yaml:"name" is:"required"`
	Port    uint16       `yaml:"port" min:"1"` // 0 means the API's default
	Weight  uint32       `yaml:"weight" default:"1"`
	Filters []filterYAML `yaml:"filters"`
}

// timeoutsYAML contains a rule's timeouts; 0 means none.
type timeoutsYAML struct {
	Request time.Duration `yaml:"request"`
	Backend time.Duration `yaml:"backendRequest"`
	Idle    time.Duration `yaml:"idle"`
}

// retryYAML configures a rule's retries. Limit is the number of retries of one request.
type retryYAML struct {
	At         yamlfile.Value
	Conditions []string      `yaml:"conditions" is:"required"`
	Limit      uint32        `yaml:"limit" min:"1" max:"65535" default:"1"`
	Timeout    time.Duration `yaml:"timeout"`
}

// accrualYAML configures failure accrual, which ejects an endpoint after consecutive failures. If
// Threshold is set, a success rate below it also ejects the endpoint. Defaults are linkerd's, and
// limits those of its proxies.
type accrualYAML struct {
	At         yamlfile.Value
	Failures   uint32         `yaml:"maxFailures" default:"7"`
	MinPenalty time.Duration  `yaml:"minPenalty" default:"1s"`
	MaxPenalty time.Duration  `yaml:"maxPenalty" default:"1m"`
	Jitter     float64        `yaml:"jitterRatio" min:"0" max:"100" default:"0.5"`
	Threshold  *float64       `yaml:"successRateThreshold" min:"0" max:"1"`
	Window     *time.Duration `yaml:"successRateWindow" min:"10ms"`
	Requests   *uint32        `yaml:"successRateMinRequests" max:"1000000"`
	MinReady   *uint32        `yaml:"minReadyEndpoints"`
}

// biaserYAML configures the load biaser, which adds a penalty to an endpoint's load when it
// responds with 429 or 503. Defaults are linkerd's.
type biaserYAML struct {
	Penalty       time.Duration `yaml:"penalty" default:"5s"`
	MaxRetryAfter time.Duration `yaml:"maxRetryAfter" default:"30s"`
}

// serverYAML is a port's inbound policy.
type serverYAML struct {
	At             yamlfile.Value
	Name           string                           `yaml:"name" is:"required"`
	Workload       string                           `yaml:"workload"`
	Port           uint16                           `yaml:"port" is:"required" min:"1"`
	ProxyProtocol  string                           `yaml:"proxyProtocol" enum:"unknown,HTTP/1,HTTP/2,gRPC,opaque,TLS" default:"unknown"`
	AccessPolicy   AccessPolicy                     `yaml:"accessPolicy" default:"deny" enum:"deny,all-unauthenticated,all-authenticated,all-tls-unauthenticated,cluster-unauthenticated,cluster-authenticated,audit"` //nolint:lll // a tag
	Authorizations []authorizationYAML              `yaml:"authorizationPolicies"`
	HTTPRoutes     []policyRouteYAML[httpMatchYAML] `yaml:"httpRoutes"`
	GRPCRoutes     []policyRouteYAML[grpcMatchYAML] `yaml:"grpcRoutes"`
	RateLimit      *rateLimitYAML                   `yaml:"httpLocalRateLimit"`
}

// authorizationYAML permits clients by network, identity or service account; see authentication for what may be
// combined.
type authorizationYAML struct {
	At              yamlfile.Value
	Name            string               `yaml:"name" is:"required"`
	Networks        []networkYAML        `yaml:"networks"`
	Identities      []string             `yaml:"identities"`
	ServiceAccounts []serviceAccountYAML `yaml:"serviceAccounts"`
	Unauthenticated bool                 `yaml:"unauthenticated"`
	AnyTLS          bool                 `yaml:"unauthenticatedTLS"`
}

// networkYAML is a network, except for some of its parts.
type networkYAML struct {
	CIDR   netip.Prefix   `yaml:"cidr" is:"required"`
	Except []netip.Prefix `yaml:"except"`
}

// serviceAccountYAML identifies clients by the Kubernetes ServiceAccount of their pods.
type serviceAccountYAML struct {
	At        yamlfile.Value
	Namespace string `yaml:"namespace" is:"required"`
	Name      string `yaml:"name" is:"required"`
}

// rateLimitYAML limits the requests to a port: all together, each client, and some clients by their own limits.
type rateLimitYAML struct {
	At        yamlfile.Value
	Name      string         `yaml:"name" is:"required"`
	Total     *limitYAML     `yaml:"total"`
	Identity  *limitYAML     `yaml:"identity"`
	Overrides []overrideYAML `yaml:"overrides"`
}

// limitYAML is a number of requests per second.
type limitYAML struct {
	Rate uint32 `yaml:"requestsPerSecond" is:"required" min:"1"`
}

// overrideYAML is a limit for the clients with these service accounts or identities. It replaces the
// limit of each client for them.
type overrideYAML struct {
	limitYAML

	At      yamlfile.Value
	Clients []serviceAccountYAML `yaml:"clientRefs"`
	Named   []string             `yaml:"identities"`
}
