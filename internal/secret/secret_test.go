package secret_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/secret"
)

// The names are those of fields and parameters of real programs.
func TestField(t *testing.T) {
	for name := range strings.FieldsSeq(`
		authorization cookie set-cookie proxy-authorization Authorization-Bin X_Authorization x.authorization Cookie2 Set-Cookie2
		grpcgateway-authorization grpcgateway-cookie x-forwarded-authorization trailer:authorization trailer:set-cookie cookies
		X-Auth XAuth xAuthToken X_AUTH_TOKEN x.auth.token x-auth-token x-auth-key OAuth oauth2 X-Authentication x-authorizations
		DPoP X-DPoP dpop X-Otp XOtp otpCode X-TOTP hotp x-mfa-code 2fa pin X-PIN pin_code X-Passphrase passcode password passwd
		user_pass dbPass X-Pwd psk x-password-hash
		X-Api-Key apikey APIKey api_key x_api_key ApiKey accessKeyId AWSAccessKey Ocp-Apim-Subscription-Key x-functions-key
		X-Csrf X-CSRF-Token X-XSRF xsrf csrfmiddlewaretoken
		session x-session-id phpsessionid JSESSIONID PHPSESSID connect.sid sid X-SID
		jwt x-jwt cf-access-jwt-assertion x-goog-iap-jwt-assertion client_assertion SAMLResponse bearer X-Bearer
		credential x-credentials x-amz-credential client_secret clientSecret refresh_token id_token X-Token-Bin x-amz-security-token
		signature x-amz-signature x-hub-signature-256 Stripe-Signature sig x-hmac private X-Private x-private-key privatekey
	`) {
		assert.True(t, secret.Field(name), name)
	}
	for name := range strings.FieldsSeq(`
		- bin -bin accept Accept-Encoding accept-language author X-Author authors authority :authority :path host content-type
		keep-alive Keyboard x-keyboard-layout Monkey X-Monkey-Id turkey design signal assign www-authenticate proxy-authenticate
		authorization-mode X-Auth-User X-Auth-Request-Email Authentication-Results x-sig-version token-type x-token-expires
		Access-Control-Allow-Credentials Access-Control-Allow-Private-Network Access-Control-Request-Private-Network
		x-ratelimit-remaining-tokens Sec-WebSocket-Key Surrogate-Key X-Cache-Key Public-Key
		Signature-Input Signature-Agent Sec-Fetch-Site X-Request-Id traceparent grpc-status grpc-timeout user-agent
		x-forwarded-for x-pass-through passenger compass bypass spinning opinion inside outsider hotplug basket
		Content-Digest ETag If-None-Match X-Envoy-Expected-Rq-Timeout-Ms l5d-client-id x-b3-sampled pinned mapping
		X-Powered-By Cache-Control Strict-Transport-Security Content-Security-Policy origin page limit offset q
	`) {
		assert.False(t, secret.Field(name), name)
	}
	require.False(t, secret.Field(""))
}

func TestPairs(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"plain text":                "plain text",
		"a=b":                       "a=b",
		"</a?token=s3cret>; rel=x":  "</a?token=[redacted]>; rel=x",
		"</a?q=1&sig=s3;c,ret&p=2>": "</a?q=1&sig=[redacted]&p=2>",
		"<https://u:s3cret@h/a>, <https://s3cret@h/b>":  "<https://h/a>, <https://h/b>",
		"https://h/#access_token=s3cret&state=1":        "https://h/#access_token=[redacted]&state=1",
		"https://h/?access%5Ftoken=s3cret":              "https://h/?access%5Ftoken=[redacted]",
		"https://h/?broken%5=s3cret":                    "https://h/?broken%5=[redacted]",
		"https://h/?xAuth=s3cret#end":                   "https://h/?xAuth=[redacted]#end",
		"session_id=s3cret,user=bob;x-api-key=s3cret":   "session_id=[redacted],user=bob;x-api-key=[redacted]",
		`Digest realm="r", token="s3, cret", nonce="n"`: `Digest realm="r", token=[redacted], nonce="n"`,
		`token="s3cret`:                     `token=[redacted]`,
		"no password=s3cret was valid":      "no password=[redacted] was valid",
		"/a//b@c/d":                         "/a//b@c/d",
		"//u:s3cret@h/":                     "//h/",
		"for=10.0.0.1;proto=https;host=a":   "for=10.0.0.1;proto=https;host=a",
		"max-age=3, private, s-maxage=1":    "max-age=3, private, s-maxage=1",
		"multipart/form-data; boundary=xyz": "multipart/form-data; boundary=xyz",
		"==a==b==":                          "==a==b==",
		"https://h/?next=https://u:s3cret@h/&token=s3cret?more": "https://h/?next=https://h/&token=[redacted]?more",
	} {
		assert.Equal(t, want, secret.Pairs(text, secret.Field), text)
	}
}

// No secret of a URL remains, wherever it stands in the text.
func FuzzPairs(f *testing.F) {
	f.Add("</a", ">; rel=next", "q=1")
	f.Add("", "", "")
	f.Add("see ", " or not", "a=b&c=d")
	f.Fuzz(func(t *testing.T, before, after, query string) {
		if strings.Contains(before+after+query, "s3cret") {
			t.Skip("is no secret")
		}
		text := before + " https://u:s3cret@h/?" + query + "&token=s3cret&" + after
		require.NotContains(t, secret.Pairs(text, secret.Field), "s3cret")
	})
}
