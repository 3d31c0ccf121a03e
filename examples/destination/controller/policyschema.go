package controller

// The structs below are the policies in the YAML file: the field policy of a destination,
// and the list servers. Their fields have the names that the Gateway API and linkerd's
// policy resources use.

// policyYAML is the outbound policy of a destination.
type policyYAML struct {
	At             line                             `yaml:",inline"`
	ProxyProtocol  text                             `yaml:"proxyProtocol"`
	HTTPRoutes     []policyRouteYAML[httpMatchYAML] `yaml:"httpRoutes"`
	GRPCRoutes     []policyRouteYAML[grpcMatchYAML] `yaml:"grpcRoutes"`
	TLSRoutes      []streamRouteYAML                `yaml:"tlsRoutes"`
	TCPRoutes      []streamRouteYAML                `yaml:"tcpRoutes"`
	FailureAccrual *accrualYAML                     `yaml:"failureAccrual"`
	LoadBiaser     *biaserYAML                      `yaml:"loadBiaser"`
}

// policyRouteYAML is an HTTPRoute or a GRPCRoute. M is the type of the conditions in its
// rules: httpMatchYAML or grpcMatchYAML.
type policyRouteYAML[M any] struct {
	At             line                `yaml:",inline"`
	Name           text                `yaml:"name"`
	Hostnames      []text              `yaml:"hostnames"`
	Rules          []policyRuleYAML[M] `yaml:"rules"`
	Authorizations []authorizationYAML `yaml:"authorizationPolicies"` // only for servers
}

type policyRuleYAML[M any] struct {
	At          line          `yaml:",inline"`
	Matches     []M           `yaml:"matches"`
	Filters     []filterYAML  `yaml:"filters"`
	BackendRefs []backendYAML `yaml:"backendRefs"` // this and the fields below are only for destinations
	Timeouts    *timeoutsYAML `yaml:"timeouts"`
	Retry       *retryYAML    `yaml:"retry"`
}

// streamRouteYAML is a TLSRoute or a TCPRoute. A TCPRoute must have no hostnames.
type streamRouteYAML struct {
	At        line             `yaml:",inline"`
	Name      text             `yaml:"name"`
	Hostnames []text           `yaml:"hostnames"`
	Rules     []streamRuleYAML `yaml:"rules"`
}

type streamRuleYAML struct {
	At          line          `yaml:",inline"`
	BackendRefs []backendYAML `yaml:"backendRefs"`
}

type httpMatchYAML struct {
	At          line             `yaml:",inline"`
	Path        *valueYAML       `yaml:"path"`
	Method      text             `yaml:"method"`
	Headers     []namedValueYAML `yaml:"headers"`
	QueryParams []namedValueYAML `yaml:"queryParams"`
}

type grpcMatchYAML struct {
	At      line             `yaml:",inline"`
	Method  *grpcMethodYAML  `yaml:"method"`
	Headers []namedValueYAML `yaml:"headers"`
}

type grpcMethodYAML struct {
	Service text `yaml:"service"`
	Method  text `yaml:"method"`
}

// valueYAML is a condition on the path of a request.
type valueYAML struct {
	At    line `yaml:",inline"`
	Type  text `yaml:"type"`
	Value text `yaml:"value"`
}

// namedValueYAML is a condition on a header or a query parameter.
type namedValueYAML struct {
	At    line `yaml:",inline"`
	Type  text `yaml:"type"`
	Name  text `yaml:"name"`
	Value text `yaml:"value"`
}

type filterYAML struct {
	At       line          `yaml:",inline"`
	Type     text          `yaml:"type"`
	Request  *modifierYAML `yaml:"requestHeaderModifier"`
	Response *modifierYAML `yaml:"responseHeaderModifier"`
	Redirect *redirectYAML `yaml:"requestRedirect"`
}

type modifierYAML struct {
	Set    []headerYAML `yaml:"set"`
	Add    []headerYAML `yaml:"add"`
	Remove []text       `yaml:"remove"`
}

type headerYAML struct {
	At    line `yaml:",inline"`
	Name  text `yaml:"name"`
	Value text `yaml:"value"`
}

type redirectYAML struct {
	Scheme   text              `yaml:"scheme"`
	Hostname text              `yaml:"hostname"`
	Port     text              `yaml:"port"`
	Status   text              `yaml:"statusCode"`
	Path     *pathModifierYAML `yaml:"path"`
}

type pathModifierYAML struct {
	At     line `yaml:",inline"`
	Type   text `yaml:"type"`
	Full   text `yaml:"replaceFullPath"`
	Prefix text `yaml:"replacePrefixMatch"`
}

type backendYAML struct {
	At      line         `yaml:",inline"`
	Name    text         `yaml:"name"`
	Port    text         `yaml:"port"`
	Weight  text         `yaml:"weight"`
	Filters []filterYAML `yaml:"filters"`
}

type timeoutsYAML struct {
	Request text `yaml:"request"`
	Backend text `yaml:"backendRequest"`
	Idle    text `yaml:"idle"`
}

type retryYAML struct {
	At         line   `yaml:",inline"`
	Conditions []text `yaml:"conditions"`
	Limit      text   `yaml:"limit"`
	Timeout    text   `yaml:"timeout"`
}

type accrualYAML struct {
	At         line `yaml:",inline"`
	Failures   text `yaml:"maxFailures"`
	MinPenalty text `yaml:"minPenalty"`
	MaxPenalty text `yaml:"maxPenalty"`
	Jitter     text `yaml:"jitterRatio"`
	Threshold  text `yaml:"successRateThreshold"`
	Window     text `yaml:"successRateWindow"`
	Requests   text `yaml:"successRateMinRequests"`
	MinReady   text `yaml:"minReadyEndpoints"`
}

type biaserYAML struct {
	Penalty       text `yaml:"penalty"`
	MaxRetryAfter text `yaml:"maxRetryAfter"`
}

// serverYAML is the inbound policy of one port.
type serverYAML struct {
	At             line                             `yaml:",inline"`
	Name           text                             `yaml:"name"`
	Workload       text                             `yaml:"workload"`
	Port           text                             `yaml:"port"`
	ProxyProtocol  text                             `yaml:"proxyProtocol"`
	AccessPolicy   text                             `yaml:"accessPolicy"`
	Authorizations []authorizationYAML              `yaml:"authorizationPolicies"`
	HTTPRoutes     []policyRouteYAML[httpMatchYAML] `yaml:"httpRoutes"`
	GRPCRoutes     []policyRouteYAML[grpcMatchYAML] `yaml:"grpcRoutes"`
	RateLimit      *rateLimitYAML                   `yaml:"httpLocalRateLimit"`
}

type authorizationYAML struct {
	At              line                 `yaml:",inline"`
	Name            text                 `yaml:"name"`
	Networks        []networkYAML        `yaml:"networks"`
	Identities      []text               `yaml:"identities"`
	ServiceAccounts []serviceAccountYAML `yaml:"serviceAccounts"`
	Unauthenticated text                 `yaml:"unauthenticated"`
	AnyTLS          text                 `yaml:"unauthenticatedTLS"`
}

type networkYAML struct {
	At     line   `yaml:",inline"`
	CIDR   text   `yaml:"cidr"`
	Except []text `yaml:"except"`
}

type serviceAccountYAML struct {
	At        line `yaml:",inline"`
	Namespace text `yaml:"namespace"`
	Name      text `yaml:"name"`
}

type rateLimitYAML struct {
	At        line           `yaml:",inline"`
	Name      text           `yaml:"name"`
	Total     *limitYAML     `yaml:"total"`
	Identity  *limitYAML     `yaml:"identity"`
	Overrides []overrideYAML `yaml:"overrides"`
}

type limitYAML struct {
	At   line `yaml:",inline"`
	Rate text `yaml:"requestsPerSecond"`
}

type overrideYAML struct {
	At      line                 `yaml:",inline"`
	Rate    text                 `yaml:"requestsPerSecond"`
	Clients []serviceAccountYAML `yaml:"clientRefs"`
	Named   []text               `yaml:"identities"`
}

// policyTypes returns a value of each type in this file, from which [fieldsOf] reads the
// names of fields.
func policyTypes() []any {
	return []any{
		policyYAML{}, policyRouteYAML[httpMatchYAML]{}, policyRouteYAML[grpcMatchYAML]{},
		policyRuleYAML[httpMatchYAML]{}, policyRuleYAML[grpcMatchYAML]{}, streamRouteYAML{}, streamRuleYAML{},
		httpMatchYAML{}, grpcMatchYAML{}, grpcMethodYAML{}, valueYAML{}, namedValueYAML{}, filterYAML{}, modifierYAML{},
		headerYAML{}, redirectYAML{}, pathModifierYAML{}, backendYAML{}, timeoutsYAML{}, retryYAML{}, accrualYAML{},
		biaserYAML{}, serverYAML{}, authorizationYAML{}, networkYAML{}, serviceAccountYAML{}, rateLimitYAML{},
		limitYAML{}, overrideYAML{},
	}
}
