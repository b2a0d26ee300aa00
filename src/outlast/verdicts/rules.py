"""
What is known about errors, as data: error classes, HTTP statuses, SQLSTATEs, errnos, libraries' codes and exception
types.

`verdicts` reads these tables and holds no knowledge of its own. Exception types are dotted names (``module.QualName``),
so nothing is imported to recognise them; the documentation's tables are made from this file.
"""

from __future__ import annotations

from outlast.kernel.value import Value, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.kernel.aliases import Category


class ErrorClass(Value):
    """
    A named kind of failure: its category, its tier, its parents, and whether every other item must fail of it too.
    """

    __slots__ = ("category", "fatal", "name", "parents", "tier")
    name: str
    category: Category
    tier: str
    parents: tuple[str, ...]
    fatal: bool

    def __init__(
        self, name: str, category: Category, tier: str, parents: tuple[str, ...] = (), *, fatal: bool = False
    ) -> None:
        put(self, "name", name)
        put(self, "category", category)
        put(self, "tier", tier)
        put(self, "parents", parents)
        put(self, "fatal", fatal)


ERROR_CLASSES: dict[str, ErrorClass] = {
    known.name: known
    for known in (
        ErrorClass("network_error", "transient", "network"),
        ErrorClass("connection_refused", "transient", "network", ("network_error",)),
        ErrorClass("connection_reset", "transient", "network", ("network_error",)),
        ErrorClass("dns_error", "transient", "network", ("network_error",)),
        ErrorClass("timeout", "transient", "network"),
        ErrorClass("database_error", "transient", "database"),
        ErrorClass("database_connection", "transient", "database", ("database_error", "network_error")),
        ErrorClass("rate_limited", "transient", "http_429_503"),
        ErrorClass("unavailable", "transient", "http_429_503"),
        ErrorClass("server_error", "transient", "http_500_502_504"),
        ErrorClass("server_error_other", "unclear", "http_5xx_other"),
        ErrorClass("temporary_failure", "transient", "unknown"),
        ErrorClass("worker_lost", "transient", "worker"),
        ErrorClass("circuit_open", "transient", "circuit"),
        ErrorClass("limit_exceeded", "transient", "limit"),
        ErrorClass("idempotency_conflict", "transient", "worker"),
        ErrorClass("resource_exhausted", "unclear", "resource"),
        ErrorClass("unknown", "unclear", "unknown"),
        ErrorClass("syntax_error", "permanent", "data"),
        ErrorClass("validation_error", "permanent", "data"),
        ErrorClass("data_error", "permanent", "data"),
        ErrorClass("invalid_output", "permanent", "data"),
        ErrorClass("missing_input", "permanent", "data"),
        ErrorClass("permanent_failure", "permanent", "data"),
        ErrorClass("idempotency_mismatch", "permanent", "data"),
        ErrorClass("code_error", "permanent", "code"),
        ErrorClass("missing_dependency", "permanent", "code", fatal=True),
        ErrorClass("cancelled", "permanent", "code"),
        ErrorClass("client_error", "permanent", "http_4xx"),
        ErrorClass("permission_denied", "permanent", "auth"),
        ErrorClass("auth_error", "permanent", "auth", fatal=True),
        ErrorClass("quota_exhausted", "permanent", "auth", fatal=True),
        ErrorClass("tls_verify", "permanent", "auth"),
    )
}
CATEGORIES = ("transient", "unclear", "permanent")
TIERS = tuple(dict.fromkeys(known.tier for known in ERROR_CLASSES.values()))

# Statuses with a meaning of their own; any other 4xx is client_error, any other 5xx server_error_other.
STATUSES: dict[int, str] = {
    401: "auth_error",
    402: "quota_exhausted",
    403: "permission_denied",
    407: "auth_error",
    429: "rate_limited",
    500: "server_error",
    502: "server_error",
    503: "unavailable",
    504: "server_error",
}

# A whole SQLSTATE wins over its class (the first two characters).
SQLSTATES: dict[str, str] = {
    "03": "syntax_error",
    "08": "database_connection",
    # With the severity FATAL it is a database_connection: whatever is wrong at PgBouncer or behind it has this state.
    "08P01": "code_error",  # protocol violation: the client itself is wrong
    "0A": "syntax_error",  # feature not supported
    "21": "data_error",
    "22": "data_error",
    "23": "data_error",
    "25": "code_error",  # the transaction is in the wrong state for this
    "25P03": "timeout",  # idle in transaction too long
    "25P04": "timeout",
    "26": "syntax_error",
    "28": "auth_error",
    "34": "syntax_error",
    "3D": "missing_input",  # no such database
    "3F": "missing_input",  # no such schema
    "40": "database_error",  # serialization failure, deadlock
    "40002": "data_error",  # constraint checked at commit
    "42": "syntax_error",
    "42501": "permission_denied",
    "45": "data_error",  # raised by a statement
    "53": "database_error",
    "54": "data_error",
    "55P03": "database_error",  # lock not available
    "55006": "database_error",  # object in use
    "57014": "timeout",  # statement cancelled
    "57P01": "database_connection",
    "57P02": "database_connection",
    "57P03": "database_connection",
    "57P04": "missing_input",  # database dropped
    "57P05": "database_connection",
    "58": "database_error",
    "P0": "data_error",  # raised by a procedure
    "XX001": "data_error",
    "XX002": "data_error",
}

# By symbol, because numbers differ between systems.
ERRNOS: dict[str, str] = {
    symbol: error_class
    for error_class, symbols in {
        "connection_refused": "ECONNREFUSED",
        "connection_reset": "ECONNRESET ECONNABORTED EPIPE ESHUTDOWN ENOTCONN",
        "timeout": "ETIMEDOUT ETIME",
        "network_error": "EHOSTUNREACH EHOSTDOWN ENETUNREACH ENETDOWN ENETRESET EADDRNOTAVAIL EPROTO ESTALE",
        "resource_exhausted": "EAGAIN EWOULDBLOCK EBUSY EMFILE ENFILE ENOMEM ENOSPC EDQUOT ENOBUFS ENOLCK ETXTBSY EADDRINUSE",
        "missing_input": "ENOENT ENOTDIR EISDIR ENXIO ENODEV ESRCH",
        "permission_denied": "EACCES EPERM EROFS",
        "data_error": "EEXIST EINVAL ENAMETOOLONG EFBIG ELOOP ENOTEMPTY EXDEV EILSEQ",
        "code_error": "EBADF EFAULT ENOTSOCK EISCONN EALREADY",
    }.items()
    for symbol in symbols.split()
}

# Primary result codes of SQLite (the low byte of sqlite_errorcode).
SQLITE_CODES: dict[int, str] = {
    1: "syntax_error",  # bad SQL, no such table
    3: "permission_denied",
    5: "database_connection",  # busy
    6: "database_connection",  # locked
    7: "resource_exhausted",
    8: "permission_denied",  # read-only
    9: "database_error",  # interrupted
    10: "database_error",  # input/output
    11: "data_error",  # corrupt
    13: "resource_exhausted",  # disk full
    14: "missing_input",  # cannot open
    15: "database_connection",  # locking protocol
    17: "database_error",  # the schema changed
    18: "data_error",
    19: "data_error",  # constraint
    20: "data_error",
    21: "code_error",  # misuse
    23: "permission_denied",
    25: "code_error",
    26: "data_error",  # not a database
}

# Codes of one library or protocol, believed before the HTTP status they come with: throttling may be a 400, a missing
# credit a 429.
CODES: dict[str, dict[str, str]] = {
    family: {code: error_class for error_class, codes in table.items() for code in codes.split()}
    for family, table in {
        "MySQL": {
            # too many connections, shutdown, killed; no route, server gone, lost, TLS, malformed packet
            "database_connection": "1040 1053 1203 1927 2002 2003 2005 2006 2012 2013 2026 2027 2055",
            # changed since it was read, lock wait, deadlock, hourly limit, read-only server
            "database_error": "1020 1205 1206 1213 1226 1290 1614 1836 3572",
            "timeout": "1317 1969 3024",
            "auth_error": "1045 1251 1698 1862 2059 2061",
            "permission_denied": "1044 1129 1130 1142 1143 1227 1370 1410",
            "missing_input": "1049",
            "resource_exhausted": "1021 1037 1038 1041 1114 1135",
            # no such table, column or function, for drivers that do not pass the SQLSTATE
            "syntax_error": "1051 1052 1054 1064 1091 1109 1136 1146 1149 1305 1318",
            # packet too large, and values that do not fit
            "data_error": "1153 1264 1265 1292 1300 1364 1365 1366 1406 1411 1526 1690 3819 4025",
            "code_error": "2014",
        },
        "AWS": {
            "rate_limited": "Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException "
            "TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded BandwidthLimitExceeded "
            "LimitExceededException EC2ThrottledException PriorRequestNotComplete SlowDown",
            "unavailable": "ServiceUnavailable ServiceUnavailableException Unavailable InsufficientInstanceCapacity",
            "server_error": "InternalError InternalFailure InternalServerError InternalServerException",
            "timeout": "RequestTimeout RequestTimeoutException",
            "database_error": "TransactionInProgressException TransactionConflictException OperationAborted",
            "auth_error": "AuthFailure ExpiredToken ExpiredTokenException IncompleteSignature InvalidAccessKeyId "
            "InvalidClientTokenId InvalidSignatureException InvalidToken MissingAuthenticationToken "
            "MissingAuthenticationTokenException NotSignedUp OptInRequired RequestExpired RequestTimeTooSkewed "
            "SignatureDoesNotMatch TokenRefreshRequired UnrecognizedClientException",
            "permission_denied": "AccessDenied AccessDeniedException AllAccessDisabled UnauthorizedOperation",
        },
        "Azure": {
            "auth_error": "AccountIsDisabled AuthenticationFailed ExpiredAuthenticationToken InvalidAuthenticationInfo "
            "InvalidAuthenticationToken InvalidAuthenticationTokenTenant NoAuthenticationInformation",
            "timeout": "OperationTimedOut",
            # the name is free again after half a minute or more
            "temporary_failure": "ContainerBeingDeleted QueueBeingDeleted ShareBeingDeleted TableBeingDeleted",
        },
        "model API": {
            "quota_exhausted": "insufficient_quota billing_hard_limit_reached billing_not_active billing_error",
            "unavailable": "overloaded_error",
            "rate_limited": "rate_limit_error rate_limit_exceeded",
            "auth_error": "authentication_error invalid_api_key",
            "permission_denied": "permission_error",
            "server_error": "api_error server_error",
            "timeout": "timeout_error",
        },
        "gRPC": {
            "cancelled": "CANCELLED",
            "unknown": "UNKNOWN",
            "validation_error": "INVALID_ARGUMENT",
            "timeout": "DEADLINE_EXCEEDED",
            "missing_input": "NOT_FOUND",
            "data_error": "ALREADY_EXISTS FAILED_PRECONDITION OUT_OF_RANGE DATA_LOSS",
            "permission_denied": "PERMISSION_DENIED",
            "auth_error": "UNAUTHENTICATED",
            "rate_limited": "RESOURCE_EXHAUSTED",
            "temporary_failure": "ABORTED",
            "code_error": "UNIMPLEMENTED",
            "server_error": "INTERNAL",
            "unavailable": "UNAVAILABLE",
        },
        "MongoDB": {
            # no route, shutdown, stepped down, socket, not the primary
            "database_connection": "6 7 89 91 189 9001 10107 11600 11602 13435 13436",
            # locks and conflicts
            "database_error": "24 46 64 112 134 133 246 251 262 TransientTransactionError RetryableWriteError",
            "timeout": "50",
            "rate_limited": "16500",
            "auth_error": "11 18",
            "permission_denied": "13",
            "missing_input": "26",
            "syntax_error": "9 40 59",
            "validation_error": "121",
            "data_error": "2 14 66 11000 11001 12582",
        },
    }.items()
}

# Which codes the errors of a type carry. "original": it carries another error, whose verdict is its own.
CARRIERS: dict[str, str] = {
    "pymysql.err.MySQLError": "MySQL",
    "MySQLdb._exceptions.MySQLError": "MySQL",
    "botocore.exceptions.ClientError": "AWS",
    "azure.core.exceptions.HttpResponseError": "Azure",
    "openai.OpenAIError": "model API",
    "anthropic.AnthropicError": "model API",
    "grpc.RpcError": "gRPC",
    "google.api_core.exceptions.GoogleAPICallError": "gRPC",
    "pymongo.errors.PyMongoError": "MongoDB",
    "sqlalchemy.exc.StatementError": "original",
}

_MYSQL = {
    "database_connection": "InterfaceError",
    "database_error": "OperationalError DatabaseError",
    "data_error": "DataError IntegrityError",
    "syntax_error": "ProgrammingError NotSupportedError",
    "unknown": "InternalError",
}
_HTTPX = {
    "network_error": "TransportError NetworkError ConnectError ProxyError",
    "timeout": "TimeoutException",
    "connection_reset": "ReadError WriteError CloseError RemoteProtocolError",
    "client_error": "TooManyRedirects",
    "data_error": "UnsupportedProtocol DecodingError InvalidURL CookieConflict",
    "code_error": "LocalProtocolError StreamError",
}
_HTTPCORE = {
    "network_error": "NetworkError ConnectError ProxyError ConnectionNotAvailable",
    "timeout": "TimeoutException",
    "connection_reset": "ReadError WriteError RemoteProtocolError",
    "data_error": "UnsupportedProtocol",
    "code_error": "LocalProtocolError",
}

# Exception types, matched along the MRO: the most specific one that is listed wins.
TYPES: dict[str, str] = {
    f"{module}.{name}": error_class
    for module, table in {
        "builtins": {
            "network_error": "ConnectionError",
            "connection_refused": "ConnectionRefusedError",
            "connection_reset": "ConnectionResetError ConnectionAbortedError BrokenPipeError",
            "timeout": "TimeoutError",
            "missing_input": "FileNotFoundError NotADirectoryError IsADirectoryError",
            "permission_denied": "PermissionError",
            "resource_exhausted": "MemoryError BlockingIOError",
            "missing_dependency": "ImportError",
            "syntax_error": "SyntaxError",
            "data_error": "ValueError KeyError TypeError FileExistsError",
            "code_error": "AttributeError NameError IndexError AssertionError ArithmeticError NotImplementedError RecursionError "
            "BufferError ReferenceError StopIteration StopAsyncIteration",
            "unknown": "OSError",
        },
        "asyncio.exceptions": {
            "connection_reset": "IncompleteReadError",
            "data_error": "LimitOverrunError",
            "code_error": "InvalidStateError",
            "cancelled": "CancelledError",
        },
        "asyncio.queues": {"resource_exhausted": "QueueFull"},
        "queue": {"resource_exhausted": "Full"},
        "concurrent.futures._base": {
            "cancelled": "CancelledError",
            "code_error": "InvalidStateError",
            "worker_lost": "BrokenExecutor",
        },
        "subprocess": {"timeout": "TimeoutExpired"},
        "socket": {"dns_error": "gaierror herror"},
        "ssl": {
            "tls_verify": "SSLCertVerificationError",
            "connection_reset": "SSLEOFError SSLZeroReturnError SSLSyscallError",
            "network_error": "SSLError",
        },
        "http.client": {
            "connection_reset": "IncompleteRead RemoteDisconnected",
            "network_error": "BadStatusLine",
            "data_error": "InvalidURL LineTooLong UnknownProtocol",
            "code_error": "ImproperConnectionState NotConnected",
        },
        "urllib.error": {
            "network_error": "URLError",
            "connection_reset": "ContentTooShortError",
            "client_error": "HTTPError",
        },
        "zlib": {"data_error": "error"},
        "struct": {"data_error": "error"},
        "_csv": {"data_error": "Error"},
        "_pickle": {"data_error": "PickleError"},
        "pickle": {"data_error": "PickleError"},
        "decimal": {"data_error": "DecimalException"},
        "xml.etree.ElementTree": {"data_error": "ParseError"},
        "requests.exceptions": {
            "network_error": "ConnectionError SSLError ProxyError",
            "timeout": "Timeout ConnectTimeout ReadTimeout",
            "connection_reset": "ChunkedEncodingError",
            "server_error": "RetryError",
            "client_error": "TooManyRedirects",
            "data_error": "InvalidURL MissingSchema InvalidSchema URLRequired InvalidHeader InvalidJSONError ContentDecodingError",
            "code_error": "StreamConsumedError UnrewindableBodyError",
        },
        "urllib3.exceptions": {
            "network_error": "NewConnectionError MaxRetryError SSLError ProxyError ProtocolError",
            "dns_error": "NameResolutionError",
            "timeout": "TimeoutError ConnectTimeoutError ReadTimeoutError",
            "connection_reset": "IncompleteRead InvalidChunkLength",
            "server_error": "ResponseError",
            "resource_exhausted": "EmptyPoolError FullPoolError",
            "data_error": "DecodeError LocationValueError",
            "code_error": "ClosedPoolError",
        },
        **dict.fromkeys(("httpx", "httpx2"), _HTTPX),
        **dict.fromkeys(("httpcore", "httpcore2"), _HTTPCORE),
        "anyio": {"connection_reset": "BrokenResourceError EndOfStream", "code_error": "ClosedResourceError"},
        "aiohttp.client_exceptions": {
            "network_error": "ClientConnectionError ClientOSError ClientSSLError ClientConnectorSSLError ClientProxyConnectionError",
            "dns_error": "ClientConnectorDNSError",
            "tls_verify": "ClientConnectorCertificateError ServerFingerprintMismatch",
            "connection_reset": "ServerDisconnectedError ClientPayloadError ClientConnectionResetError",
            "timeout": "ServerTimeoutError",
            "client_error": "TooManyRedirects",
            "invalid_output": "ContentTypeError",
            "data_error": "InvalidURL NonHttpUrlClientError",
        },
        "aiohttp.http_exceptions": {"connection_reset": "HttpProcessingError"},
        "psycopg": {
            "database_connection": "OperationalError InterfaceError",
            "data_error": "DataError IntegrityError",
            "syntax_error": "ProgrammingError NotSupportedError",
        },
        "psycopg_pool": {"database_error": "PoolTimeout TooManyRequests", "code_error": "PoolClosed"},
        "psycopg2": {
            "database_connection": "DatabaseError OperationalError InterfaceError",
            "data_error": "DataError IntegrityError",
            "syntax_error": "ProgrammingError NotSupportedError",
            "unknown": "InternalError",
        },
        "psycopg2.pool": {"database_error": "PoolError"},
        "sqlite3": {
            "data_error": "DataError IntegrityError",
            "code_error": "ProgrammingError InterfaceError",
            "syntax_error": "NotSupportedError",
            "database_error": "OperationalError DatabaseError",
        },
        "pymysql.err": _MYSQL,
        "MySQLdb._exceptions": _MYSQL,
        "asyncpg.exceptions._base": {
            "database_connection": "InterfaceError TargetServerAttributeNotMatched",
            "database_error": "OutdatedSchemaCacheError",
            "data_error": "ClientConfigurationError DataError",
            "syntax_error": "UnsupportedClientFeatureError UnsupportedServerFeatureError",
            "code_error": "InternalClientError ProtocolError",
        },
        "sqlalchemy.exc": {
            # TimeoutError: the pool had no connection in time
            "database_error": "TimeoutError DatabaseError OperationalError",
            "database_connection": "DisconnectionError InterfaceError",
            "data_error": "DataError IntegrityError NoResultFound MultipleResultsFound",
            "syntax_error": "ProgrammingError NotSupportedError CompileError IdentifierError NoSuchTableError NoSuchColumnError",
            "missing_dependency": "NoSuchModuleError NoDBAPILoaded",
            "code_error": "ArgumentError CircularDependencyError InvalidRequestError",
            "unknown": "InternalError",
        },
        "redis.exceptions": {
            "network_error": "ConnectionError InvalidResponse",
            "timeout": "TimeoutError",
            "unavailable": "BusyLoadingError",
            "database_error": "MaxConnectionsError ReadOnlyError TryAgainError ClusterDownError MasterDownError AskError MovedError "
            "SlotNotCoveredError WatchError",
            "resource_exhausted": "OutOfMemoryError",
            "auth_error": "AuthenticationError AuthenticationWrongNumberOfArgsError ExternalAuthProviderError",
            "permission_denied": "AuthorizationError NoPermissionError",
            "missing_input": "NoScriptError",
            "data_error": "DataError ResponseError",
            "code_error": "PubSubError InvalidPipelineStack CrossSlotTransactionError",
            "unknown": "LockError",
        },
        "botocore.exceptions": {
            "network_error": "ConnectionError EndpointConnectionError SSLError ProxyConnectionError HTTPClientError "
            "MetadataRetrievalError ChecksumError",
            "timeout": "ConnectTimeoutError ReadTimeoutError",
            "connection_reset": "ConnectionClosedError ResponseStreamingError IncompleteReadError",
            "auth_error": "NoCredentialsError PartialCredentialsError CredentialRetrievalError UnknownCredentialError "
            "NoAuthTokenError TokenRetrievalError UnauthorizedSSOTokenError SSOTokenLoadError",
            "validation_error": "ValidationError ParamValidationError MissingParametersError",
            "data_error": "DataNotFoundError BaseEndpointResolverError UnknownRegionError EndpointResolutionError ProfileNotFound ConfigParseError "
            "ConfigNotFound InvalidConfigError InvalidDNSNameError InvalidRetryConfigurationError",
            "code_error": "UnknownClientMethodError OperationNotPageableError UnseekableStreamError",
        },
        "openai": {
            "network_error": "APIConnectionError",
            "timeout": "APITimeoutError",
            "invalid_output": "APIResponseValidationError LengthFinishReasonError ContentFilterFinishReasonError",
            "auth_error": "OAuthError",
        },
        "anthropic": {
            "network_error": "APIConnectionError",
            "timeout": "APITimeoutError",
            "invalid_output": "APIResponseValidationError",
            "auth_error": "CredentialsError",
            "temporary_failure": "RetryableError",
        },
        "pydantic_core._pydantic_core": {"validation_error": "ValidationError"},
        "pydantic.v1.error_wrappers": {"validation_error": "ValidationError"},
        "pydantic.error_wrappers": {"validation_error": "ValidationError"},  # pydantic 1 itself
        "pydantic.errors": {"code_error": "PydanticUserError"},
        "jsonschema.exceptions": {
            "validation_error": "ValidationError",
            "code_error": "SchemaError UnknownType UndefinedTypeCheck",
        },
        "grpc": {"timeout": "FutureTimeoutError", "cancelled": "FutureCancelledError"},
        "google.api_core.exceptions": {"code_error": "DuplicateCredentialArgs AsyncRestUnsupportedParameterError"},
        "google.auth.exceptions": {
            "network_error": "TransportError",
            "timeout": "TimeoutError",
            "auth_error": "DefaultCredentialsError RefreshError OAuthError UserAccessTokenError",
        },
        "azure.core.exceptions": {
            "network_error": "ServiceRequestError",
            "connection_reset": "ServiceResponseError IncompleteReadError",
            "timeout": "ServiceRequestTimeoutError ServiceResponseTimeoutError",
            "auth_error": "ClientAuthenticationError",
            "client_error": "TooManyRedirectsError",
            "invalid_output": "DecodeError",
            "code_error": "StreamConsumedError StreamClosedError ResponseNotReadError",
        },
        "pymongo.errors": {
            "database_connection": "ConnectionFailure AutoReconnect ServerSelectionTimeoutError NotPrimaryError",
            "database_error": "WaitQueueTimeoutError WriteConcernError CursorNotFound",
            "timeout": "NetworkTimeout ExecutionTimeout",
            "data_error": "WriteError DuplicateKeyError CollectionInvalid InvalidName ConfigurationError InvalidURI",
            "code_error": "InvalidOperation ProtocolError",
        },
        "bson.errors": {"data_error": "BSONError"},
        "outlast.errors": {
            "circuit_open": "CircuitBreakerOpenError",
            "limit_exceeded": "LimitExceededError",
            "data_error": "ConfigurationError",
            "temporary_failure": "TemporaryFailure",
            "permanent_failure": "PermanentFailure",
        },
    }.items()
    for error_class, names in table.items()
    for name in names.split()
}

# What certainly had no effect: the call was never sent, or the service refused to take it.
UNDONE = frozenset(
    "connection_refused dns_error tls_verify circuit_open limit_exceeded rate_limited temporary_failure".split()
)
UNDONE_TYPES = frozenset(
    {
        "requests.exceptions.ConnectTimeout",
        "urllib3.exceptions.ConnectTimeoutError",
        "urllib3.exceptions.NewConnectionError",
        "httpx.ConnectTimeout",
        "httpx.ConnectError",
        "httpx.PoolTimeout",
        "aiohttp.client_exceptions.ClientConnectorError",
        "aiohttp.client_exceptions.ConnectionTimeoutError",
        "botocore.exceptions.ConnectTimeoutError",
        "botocore.exceptions.EndpointConnectionError",
        "azure.core.exceptions.ServiceRequestError",
        "psycopg_pool.PoolTimeout",
        "sqlalchemy.exc.TimeoutError",
    }
)

# SQLSTATEs with which a database says that the transaction was rolled back. 40003 is none: it says that nobody knows.
UNDONE_STATES = frozenset({"40000", "40001", "40002", "40P01"})

# Types that wrap a more precise error: what they were caused by may sharpen the verdict to one of these classes.
WRAPPERS = frozenset(
    {
        "builtins.OSError",
        "urllib.error.URLError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.SSLError",
        "urllib3.exceptions.NewConnectionError",
        "urllib3.exceptions.MaxRetryError",
        "urllib3.exceptions.SSLError",
        "urllib3.exceptions.ProtocolError",
        *(
            f"{module}.{name}"
            for module in ("httpx", "httpx2")
            for name in ("TransportError", "NetworkError", "ConnectError")
        ),
        *(f"{module}.{name}" for module in ("httpcore", "httpcore2") for name in ("NetworkError", "ConnectError")),
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientOSError",
        "aiohttp.client_exceptions.ClientSSLError",
        "aiohttp.client_exceptions.ClientConnectorSSLError",
        "redis.exceptions.ConnectionError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.EndpointConnectionError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.SSLError",
        "openai.APIConnectionError",
        "anthropic.APIConnectionError",
        "google.auth.exceptions.TransportError",
        "azure.core.exceptions.ServiceRequestError",
        "azure.core.exceptions.ServiceResponseError",
    }
)
SHARPER = frozenset({"connection_refused", "connection_reset", "dns_error", "timeout", "tls_verify", "server_error"})

# Types whose `code`, `status` or `errno` is not what it seems.
NOT_A_STATUS = frozenset({"aiohttp.http_exceptions.HttpProcessingError", "pymongo.errors.PyMongoError"})
# Types whose integer `code` is an HTTP status even if the exception carries neither a response nor headers. Elsewhere
# it may be anything.
CODE_IS_STATUS = frozenset(
    {
        "aiohttp.client_exceptions.ClientResponseError",
        "google.api_core.exceptions.GoogleAPICallError",
        "tornado.httpclient.HTTPClientError",
        "urllib.error.HTTPError",
        "werkzeug.exceptions.HTTPException",
    }
)
NOT_AN_ERRNO = frozenset(
    {"ssl.SSLError", "socket.gaierror", "socket.herror", "aiohttp.client_exceptions.ClientConnectorDNSError"}
)

# Where types are exported under a shorter public name: canonical prefix -> public prefix.
PUBLIC = {
    "requests.exceptions.": "requests.",
    "urllib3.exceptions.": "urllib3.",
    "aiohttp.client_exceptions.": "aiohttp.",
    "asyncio.exceptions.": "asyncio.",
    "asyncio.queues.": "asyncio.",
    "concurrent.futures._base.": "concurrent.futures.",
    "json.decoder.": "json.",
    "psycopg.errors.": "psycopg.",
    "psycopg2.errors.": "psycopg2.",
    "pymysql.err.": "pymysql.",
    "MySQLdb._exceptions.": "MySQLdb.",
    "asyncpg.exceptions._base.": "asyncpg.",
    "asyncpg.exceptions.": "asyncpg.",
    "redis.exceptions.": "redis.",
    "pydantic_core._pydantic_core.": "pydantic.",
    "pydantic.v1.error_wrappers.": "pydantic.v1.",
    "jsonschema.exceptions.": "jsonschema.",
    "grpc.aio._call.": "grpc.aio.",
    "outlast.errors.": "outlast.",
    "_csv.": "csv.",
    "_pickle.": "pickle.",
    "builtins.": "",
}
# Names that since Python 3.11 are a builtin under another name.
SAME = {
    "asyncio.TimeoutError": "builtins.TimeoutError",
    "concurrent.futures.TimeoutError": "builtins.TimeoutError",
    "socket.timeout": "builtins.TimeoutError",
    "socket.error": "builtins.OSError",
    "IOError": "builtins.OSError",
    "EnvironmentError": "builtins.OSError",
    "ssl.CertificateError": "ssl.SSLCertVerificationError",
}
