%% serve: an echo server on gen_tcp, and an Erlang node; check: verifies both; endless: talks until the server is gone.
-module(tcp_peers).
-export([serve/1, check/1, endless/1, sum/1]).

serve([Port]) ->
    Options = [binary, {active, true}, {ip, {127, 0, 0, 1}}, {reuseaddr, true}, {backlog, 64}],
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), Options),
    accept(Listener).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    gen_tcp:controlling_process(Socket, spawn(fun() -> echo(Socket) end)),
    accept(Listener).

echo(Socket) ->
    receive
        {tcp, Socket, Data} -> gen_tcp:send(Socket, Data), echo(Socket);
        {tcp_closed, Socket} -> ok
    end.

sum(Binary) -> crypto:hash(sha256, Binary).

connect(Port) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(Port), [binary, {active, false}, {packet, 0}]),
    Socket.

talk(Port, Size) ->
    Socket = connect(Port),
    Data = crypto:strong_rand_bytes(Size),
    Self = self(),
    spawn_link(fun() -> ok = gen_tcp:send(Socket, Data), Self ! sent end),
    {ok, Data} = gen_tcp:recv(Socket, Size, 10000),
    receive sent -> ok end,
    gen_tcp:close(Socket).

check([Port]) ->
    Parent = self(),
    [spawn_link(fun() -> talk(Port, 1 + Number * 20011), Parent ! done end) || Number <- lists:seq(0, 39)],
    [receive done -> ok end || _ <- lists:seq(1, 40)],
    Server = 'server@127.0.0.1',
    pong = net_adm:ping(Server),
    lists:foreach(
        fun(Number) ->
            Data = crypto:strong_rand_bytes(Number * 7919),
            Sum = sum(Data),
            Sum = rpc:call(Server, tcp_peers, sum, [Data], 10000)
        end,
        lists:seq(0, 150)
    ),
    io:format("correct~n"),
    halt(0).

endless([Port]) ->
    Socket = connect(Port),
    ok = gen_tcp:send(Socket, binary:copy(<<0>>, 30000)),
    {ok, _} = gen_tcp:recv(Socket, 30000),
    io:format("begun~n"),
    forever(Socket).

forever(Socket) ->
    case gen_tcp:send(Socket, binary:copy(<<0>>, 30000)) of
        ok ->
            case gen_tcp:recv(Socket, 30000) of
                {ok, _} -> forever(Socket);
                _ -> halt(1)
            end;
        _ -> halt(1)
    end.
