-- Jobs of flows have a kind for each flow, and a worker serves all of these: its turn takes them by how their kinds begin.
do $$
begin
    execute replace(
        pg_get_functiondef('outlast_turn'::regproc),
        'array_position(kinds, job.kind)',
        'array_position(kinds, case when substr(job.kind, 1, 5) = ''flow:'' then ''outlast.flow'' else job.kind end)'
    );
end
$$;
