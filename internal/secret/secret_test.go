package secret

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestField(t *testing.T) {
	for name, want := range map[string]bool{
		"authorization": true, "cookie": true, "set-cookie": true, "proxy-authorization": true,
		"grpcgateway-authorization": true, "grpcgateway-cookie": true, "x-forwarded-authorization": true,
		"authorization-bin": true, "trailer:authorization": true, "trailer:set-cookie": true, "": false, "-": false, "authorization-mode": false, "cookies": false,
		"x-api-key": true, "apikey": true, "x-auth-token": true, "x-amz-security-token": true, "client_secret": true,
		"x-password-hash": true, "x-credentials": true, "x-token-bin": true, "keep-alive": false, "content-type": false,
		"x-session-id": true, "phpsessionid": true, "cf-access-jwt-assertion": true, "x-amz-signature": true, "x-hub-signature-256": true, "passwd": true,
		"sig": true, "signal": false, "design": false, "x-sig-version": false,
		"www-authenticate": false, "x-authorizations": false, "bin": false, "-bin": false,
	} {
		require.Equal(t, want, Field(name), name)
	}
}
